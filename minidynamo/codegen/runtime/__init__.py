"""Builds, loads, caches and launches kernels.

Owns the C++ compiler, libraries on disk, Triton's launcher, random numbers.
Does not own the source of kernels (`printers/`).
Enter at `library.load`, `triton_launch.launchers`.
"""
