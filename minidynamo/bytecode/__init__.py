"""Code objects: decoding them, and the functions that carry a frame across a graph break.

Owns instructions, live locals, break and resume functions.
Does not own meaning of opcodes (`tracer/opcodes/`).
Enter at `instructions.decode`, `breaks.make_break`.
"""
