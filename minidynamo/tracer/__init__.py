"""Verbs of capture: a symbolic interpreter of bytecode that writes a graph, guards and a journal of side effects.

Owns everything between a frame with its values and a `TracedFrame`.
Does not own compiling the graph (`autograd/`, `codegen/`), choosing an entry (`frontend/`).
Enter at `capture.frame.trace_frame`.
"""
