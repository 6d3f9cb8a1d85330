"""Defines the loop IR.

Owns index, size and value expressions, loops, kernels, their verifier and their text.
Does not own how operations become loops (`lowering/`).
Enter at `loops.LoopProgram`, `loops.Kernel`.
"""
