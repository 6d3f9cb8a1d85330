"""Owns the marks in a captured graph's `meta`, through which the tracer and the backends communicate.

The readers of a mark define its effect: `tracer/capture/rerun.py` and `backends/registry.py`.
"""

from __future__ import annotations

# Set by the tracer: the graph may raise, depending on data, after writes that autograd records. A backend should do
# such writes last where it can.
RECORDS_WRITES = "minidynamo_records_writes"

# Set by a backend: the callable computes everything before autograd records any write or saves any tensor.
COMPUTES_FIRST = "minidynamo_computes_first"
