"""From a torch-level graph to forward, backward and inference graphs of ATen operations, and their runtime.

Owns tracing gradients, removing mutation, partitioning, and calls of the compiled graphs.
Does not own kernels (`codegen/`), the choice of a backend (`backends/`).
Enter at `aot.aot_compile`.
"""
