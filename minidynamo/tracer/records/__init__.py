"""Records and tables that the rest of the tracer shares.

Owns requests, results, side effects, constants, the registry of handlers. Does not own decisions: the other folders
read and fill these records. Enter at `registry.function`, `traced_frame.TracedFrame`.
"""
