"""Speed and memory of the losses, measured beside other learning-to-rank libraries.

``python -m benchmarks.losses`` compares, ``python -m benchmarks.growth`` lets one list grow.
"""
