"""From `minidynamo.compile` and a call to an entry.

Owns arguments of `compile`, dispatchers, the conversion of a frame, compiled functions.
Does not own capture (`tracer/`) and what compiles a graph (`backends/`).
Enter at `compile.compile`, `convert_frame.convert_frame`, `dispatcher.Dispatcher`.
"""
