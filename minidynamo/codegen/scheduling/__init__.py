"""Which loops share a kernel, and in which order kernels run.

Owns inlining, fusion, order of axes, splitting of reductions.
Does not own memory of results (`memory/`).
Enter at `schedule.schedule`.
"""
