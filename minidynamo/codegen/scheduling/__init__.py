"""Decides which loops share a kernel and in which order kernels run."""
