"""A small, readable tracing compiler for PyTorch programs."""
