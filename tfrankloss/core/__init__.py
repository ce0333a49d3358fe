"""Pure functions on ``[batch, list]`` arrays that every loss is made of.

``lists`` is the one door for inputs; ``ranks`` sorts, ranks, and knows gains and discounts;
``pairs`` sums over pairs of documents; ``soft_ranks`` and ``distributions`` are their smooth and
probabilistic counterparts; ``noise`` draws random numbers without state; ``backend`` holds the few
things that TensorFlow and JAX do differently.
"""
