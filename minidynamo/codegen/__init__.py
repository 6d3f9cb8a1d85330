"""Compiles an ATen graph to fused kernels, and to the host program that launches them.

Owns every stage from lowering to a callable.
Does not own gradients and mutation (`autograd/`).
Enter at `compile_graph.compile_graph`.
"""
