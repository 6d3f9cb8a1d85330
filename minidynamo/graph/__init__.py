"""What nodes of a captured graph call, and how a graph is called and printed.

Owns the boxed calling convention, functions of torch that are one node, scalar arguments, settings of torch.
Does not own how a graph is captured (`tracer/`) or compiled (`autograd/`, `codegen/`).
Enter at `boxed.make_boxed`, `text.graph_text`, `scalar_arguments.operator_of`.
"""
