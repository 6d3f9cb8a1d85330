"""The joint graph: forward and gradients, traced together.

Owns decompositions, and operations whose derivatives read data.
Does not own mutation, which `functional/` removes.
Enter at `joint.trace_joint`.
"""
