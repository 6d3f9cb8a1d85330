"""The state of a trace: the tracer object, and a symbolic frame per traced call of a function.

Owns the tracer's contract with handlers, stack, locals, inlining, generators, exceptions, unrolled loops.
Does not own the effect of an instruction (`opcodes/`).
Enter at `interpreter.Tracer`, `interpreter.Frame`, `inlining.inline_function`.
"""
