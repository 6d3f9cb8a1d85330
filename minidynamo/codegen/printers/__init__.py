"""Spells kernels as C++ or Triton and the host program as Python."""
