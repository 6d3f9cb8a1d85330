"""Decides which loops share a kernel, and the order of the kernels.

Owns inlining, fusion, the order of axes, the splitting of reductions.
Does not own the memory of results (`memory/`).
Enter at `schedule.schedule`.
"""
