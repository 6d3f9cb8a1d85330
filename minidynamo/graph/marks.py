"""Owns what the tracer and the backends tell each other of a captured graph: marks in its `meta`.

What a mark changes is decided where it is read: in `tracer/capture/rerun.py`, and in `backends/registry.py`.
"""

from __future__ import annotations

# By the tracer: data may make the graph raise behind writes that autograd records. A backend that could also do these
# writes behind all other work should.
RECORDS_WRITES = "minidynamo_records_writes"

# By a backend: what it returns computes everything first; by then autograd has recorded no write and saved nothing.
COMPUTES_FIRST = "minidynamo_computes_first"

# By a backend: a host program calls the operators of the user's, so that the traceback of an error tells which raised.
TELLS_OPERATORS = "minidynamo_tells_operators"
