"""Calls of compiled graphs, and their backward.

Owns custom autograd functions, hooks, accumulation, double backward.
Does not own what is compiled: that is decided in the other folders.
Enter at `graph_call.training_call`, `graph_call.inference_call`.
"""
