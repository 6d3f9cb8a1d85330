"""Predicts the lifetimes of buffers before a graph runs.

Owns plans of compiled graphs and of graphs that run operation by operation, and records of saved tensors.
Does not own decisions about memory (`codegen/memory/`).
Enter at `plan.MemoryPlan`, `graph_plan.graph_plan`.
"""
