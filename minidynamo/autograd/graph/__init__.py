"""Facts about ATen graphs that every stage of autograd asks for.

Owns layouts, views, mutation, provenance, the builder of graphs, the signature of a compiled graph.
Does not own the stages themselves.
Enter at `graph_builder.GraphBuilder`, `signature.GraphSignature`.
"""
