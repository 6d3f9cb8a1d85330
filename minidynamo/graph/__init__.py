"""Runs and prints captured graphs, and defines the functions that their nodes call.

Owns the boxed calling convention, torch functions that are one node, scalar arguments, settings of torch. Does not own
how a graph is captured (`tracer/`) or compiled (`autograd/`, `codegen/`). Enter at `boxed.make_boxed`,
`boxed.graph_text`, `scalar_arguments.operator_of`.
"""
