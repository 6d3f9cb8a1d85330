"""The graph under construction.

Owns graph inputs, how calls become nodes, fake tensors, subgraphs, dead code.
Does not own which calls go into the graph (`trace_rules.py`).
Enter at `output_graph.OutputGraph`.
"""
