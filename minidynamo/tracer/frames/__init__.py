"""Symbolic frames: one per function that is traced.

Owns stack, locals, inlining, generators, exceptions, unrolled loops.
Does not own what an instruction does (`opcodes/`).
Enter at `interpreter.Frame`, `inlining.inline_function`.
"""
