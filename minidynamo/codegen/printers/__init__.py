"""Prints kernels as C++ or Triton, and the host program as Python.

Owns the text of expressions, loops and calls.
Does not own building and loading (`runtime/`).
Enter at `cpp.print_kernels`, `host.print_host`.
"""
