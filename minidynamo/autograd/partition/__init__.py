"""The split of a joint graph into forward and backward.

Owns the choice of saved tensors, packing by the user's hooks, and replay of random numbers.
Does not own the rules for recomputation (`graph/recomputation.py`).
Enter at `partition.partition`.
"""
