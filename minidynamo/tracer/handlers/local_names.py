"""Owns `locals()` and `vars()`: a dict of the bound names of the calling function.

Before Python 3.13, every call returns the same dict with new contents. If an earlier call is possible, the function
runs eagerly.
"""

from __future__ import annotations

from typing import NoReturn
from weakref import WeakSet

from minidynamo.bytecode.instructions import decode
from minidynamo.compat import PY313
from minidynamo.errors import Diagnostic, SkipFrame
from minidynamo.tracer.frames.interpreter import Frame, Tracer
from minidynamo.tracer.handlers.values import constant
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import key_of
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictVariable

_LOCALS_FUNCTIONS = ("locals", "vars")
# The frames that called `locals`.
_FRAMES_WITH_LOCALS: WeakSet[Frame] = WeakSet()


@registry.function(locals)
def names_of_caller(tx: Tracer) -> VariableTracker:
    """Returns `locals()` of the innermost frame."""
    frame = tx.frames[-1]
    if not PY313 and (frame in _FRAMES_WITH_LOCALS or _count_locals_loads(frame) > 1):
        _refuse_locals(tx)
    _FRAMES_WITH_LOCALS.add(frame)
    code = frame.code
    names = dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
    bound = {name: frame.read(name) for name in names}
    return DictVariable({key_of(constant(name)): value for name, value in bound.items() if value is not None})


def _count_locals_loads(frame: Frame) -> int:
    """Returns the number of instructions that load a function that may return the names."""
    steps = decode(frame.code)
    return sum(step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in _LOCALS_FUNCTIONS for step in steps)


def _refuse_locals(tx: Tracer) -> NoReturn:
    """Skips the root frame: all its calls return the same dict. A call in an inlined frame breaks the graph."""
    what = "`locals` may be called twice"
    why = "In this version of Python each call updates and returns the same dict."
    if len(tx.frames) == 1:
        raise SkipFrame(
            Diagnostic("MD233", what, why=why, fix="Name the variables that you need.", where=tx.frames[0].location)
        )
    tx.break_graph("MD233", what, why=why, fix="Name the variables that you need.")
