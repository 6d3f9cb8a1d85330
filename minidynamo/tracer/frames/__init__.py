"""Symbolic frames: one per traced call of a function.

Owns stack, locals, inlining, generators, exceptions, unrolled loops.
Does not own the effect of an instruction (`opcodes/`).
Enter at `interpreter.Frame`, `inlining.inline_function`.
"""
