"""Reinplacing: operator calls that write to inputs, and to parts of tensors, where the program does.

Owns the rewriting of functional operations as writes, and the alias sets of a graph.
Does not own memory that dies: `codegen/memory/` plans it, for kernels and operator calls alike.
Enter at `reuse.reinplace`.
"""
