"""The path from `minidynamo.compile` to the call of an entry.

Owns the arguments of `compile`, dispatchers, the conversion of a frame, compiled functions. Does not own capture
(`tracer/`) and the compilation of graphs (`backends/`). Enter at `compile.compile`, `convert_frame.convert_frame`,
`dispatcher.Dispatcher`.
"""
