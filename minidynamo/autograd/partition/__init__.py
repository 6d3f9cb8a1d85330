"""The split of a joint graph into forward and backward.

Owns the choice of saved tensors, hooks that pack them, random numbers drawn twice.
Does not own what may be recomputed (`graph/recomputation.py`).
Enter at `partition.partition`.
"""
