"""Pure functions on ``[batch, list]`` arrays that every loss is made of.

``lists`` is the one door for inputs; ``ranks`` sorts, ranks, and knows gains and discounts;
``pairs`` sums over pairs of documents; ``swaps`` is what a metric changes by when two documents
swap places; ``soft_ranks`` and ``distributions`` are the smooth and probabilistic counterparts of
ranks; ``noise`` draws random numbers without state; ``blocks`` holds the loops over rows and the
prefix scans; ``backend`` the few things that TensorFlow and JAX do differently.
"""
