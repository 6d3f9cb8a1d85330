"""Owns `locals()` and `vars()`: the names of the calling function that are bound, in a dict.

Before Python 3.13 a call gives the dict of an earlier one again, with new contents: where there may be an earlier one,
the function runs as written.
"""

from __future__ import annotations

from typing import NoReturn
from weakref import WeakSet

from minidynamo.bytecode.instructions import decode
from minidynamo.compat import PY313
from minidynamo.errors import Diagnostic, SkipFrame
from minidynamo.tracer.handlers.values import constant
from minidynamo.tracer.protocol import FrameView, Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import key_of
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictVariable

_ASKING = ("locals", "vars")
# The frames whose names were asked for.
_ASKED: WeakSet[FrameView] = WeakSet()


@registry.function(locals)
def names_of_caller(tx: Tracer) -> VariableTracker:
    """`locals()` of the innermost frame."""
    frame = tx.frames[-1]
    if not PY313 and (frame in _ASKED or _ways_to_ask(frame) > 1):
        _leave_frame(tx)
    _ASKED.add(frame)
    code = frame.code
    names = dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
    found = {name: frame.read(name) for name in names}
    return DictVariable({key_of(constant(name)): value for name, value in found.items() if value is not None})


def _ways_to_ask(frame: FrameView) -> int:
    """How many places in the code mention a function that may give the names."""
    steps = decode(frame.code)
    return sum(step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in _ASKING for step in steps)


def _leave_frame(tx: Tracer) -> NoReturn:
    """Let the frame run as written: all its calls give the one dict of the one frame. A callee is left to itself."""
    what = "`locals` may be called twice"
    why = "In this version of Python each call gives the same dict, which then shows what is bound."
    if len(tx.frames) == 1:
        raise SkipFrame(Diagnostic("MD233", what, why=why, fix="name what you need", where=tx.frames[0].location))
    tx.break_graph("MD233", what, why=why, fix="name what you need")
