"""Reinplacing of graphs that run operation by operation.

Owns operations that write their result over memory that is no longer read.
Does not own generated kernels, whose memory `codegen/memory/` plans.
Enter at `reuse.reinplace_graph`, `backward_reuse.reinplace_backward`.
"""
