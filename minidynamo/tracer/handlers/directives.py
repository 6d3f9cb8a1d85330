"""Owns the directives (`graph_break`, `set_stance`) during capture.

Their eager meaning is in `minidynamo/core/directives.py`.
"""

from __future__ import annotations

from minidynamo import compat
from minidynamo.core import directives
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.variables.base import ConstantVariable, VariableTracker

registry.function(compat.tracing_state)(lambda tx: ConstantVariable(None))


@registry.function(directives.graph_break)
def _graph_break(tx: Tracer, message: VariableTracker | None = None) -> VariableTracker:
    try:
        reason = "" if message is None else as_constant(message)
    except NotConstant:
        reason = ""
    tx.break_graph(
        "MD223",
        f"the program asks for it: {reason}" if reason else "the program asks for it",
        why="Everything before this line is one graph, everything after it is another.",
        fix="Remove the call to keep one graph.",
    )


@registry.function(directives.set_stance)
def _set_stance(tx: Tracer, stance: VariableTracker | None = None) -> VariableTracker:
    tx.break_graph(
        "MD223",
        "set_stance changes how compiled functions run",
        why="Calls after it run by the new stance.",
        fix="Choose the stance outside of the compiled function.",
    )
