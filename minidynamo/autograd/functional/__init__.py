"""The joint graph without mutation.

Owns values instead of writes and views, and the results of a graph.
Does not own the split into forward and backward (`partition/`).
Enter at `functionalize.functionalize`.
"""
