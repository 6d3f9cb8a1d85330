"""A trace, from start to end.

Owns the tracer object, the choice of cuts, the end of a frame, the residual program.
Does not own single instructions (`frames/`, `opcodes/`) and calls (`calls/`).
Enter at `frame.trace_frame`, `trace.Trace`, `residual.print_residual`.
"""
