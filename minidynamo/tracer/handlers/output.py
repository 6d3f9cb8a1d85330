"""Owns `print`, and the deferral of calls that write text: the residual program makes the call after the graph, in the
order of the program's side effects.

If the graph raises an error, the frame is rerun eagerly, so that all lines before the error appear. Loggers are in
`loggers.py`, the checks at the end of the trace in `tracer/frames/deferrals.py`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import torch

from minidynamo.guards.source import Constant
from minidynamo.tracer.frames.deferrals import defer
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.dry_run import defers_message
from minidynamo.tracer.reachable import is_external, reachable
from minidynamo.tracer.records import registry
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable
from minidynamo.variables.containers import DictVariable, ListVariable, TupleVariable
from minidynamo.variables.tensors import ItemVariable, TensorVariable

# Classes of values that never change.
_UNCHANGING = (str, int, float, bool, complex, type(None), torch.dtype, torch.device, torch.Size)
_CONTAINERS = (ListVariable, TupleVariable, DictVariable)
_WRITERS = (io.TextIOWrapper.write, io.StringIO.write)


def defer_output(
    tx: Tracer,
    function: Callable[..., object],
    values: Sequence[VariableTracker],
    *,
    before: Iterable[VariableTracker] = (),
    named: Mapping[str, VariableTracker] = MappingProxyType({}),
) -> bool:
    """Defers `function(*before, *values, **named)`, which writes the texts of `values`; returns False if the graph must
    break."""
    deferral = defer(tx, [value for value in values if isinstance(value, TensorVariable)])
    if deferral is None or not deferral.is_allowed or not all(map(_is_unchanging, values)):
        return False
    if tx.side_effects.writes_globals(vars(sys)):  # the program has replaced `sys.stdout`
        return False
    tx.output_checks.append(deferral.check_output)
    known = BuiltinVariable(function, source=Constant(function, function.__name__))
    tx.side_effects.record_call(known, *before, *values, **named)
    return True


def _is_unchanging(value: VariableTracker) -> bool:
    """Returns whether the text of a value is the same after the graph; tensors are checked at the end."""
    if isinstance(value, TensorVariable):
        return value.cls in (torch.Tensor, torch.nn.Parameter)
    known = isinstance(value, ConstantVariable | NumberVariable | ItemVariable) or value.python_type is torch.Size
    return known and value.python_type in _UNCHANGING


def _shown(tx: Tracer, value: VariableTracker) -> VariableTracker:
    """Returns the text of a tensor, or of a container that the frame has created; any other value itself."""
    if isinstance(value, _CONTAINERS) and value.python_type is not torch.Size:
        found, _ = reachable([value], tx.side_effects)
        parts = [part.realize() for part in found]
        if any(is_external(part) if isinstance(part, _CONTAINERS) else not _is_unchanging(part) for part in parts):
            return value
    elif not isinstance(value, TensorVariable):
        return value
    return tx.call(str, [value])


@registry.function(print)
def _print(tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    if defers_message(tx, kwargs):
        return ConstantVariable(None)
    file = kwargs.get("file", ConstantVariable(None))
    options = [value for value in kwargs.values() if value is not file]
    is_plain = _is_unchanging(file) or (is_external(file) and getattr(file.python_type, "write", None) in _WRITERS)
    is_plain = is_plain and all(map(_is_unchanging, options))
    if is_plain and defer_output(tx, print, [_shown(tx, arg) for arg in args], named=kwargs):
        return ConstantVariable(None)
    tx.break_graph(
        "MD233",
        "`print`",
        why="The text may change until the graph has run, or other code may print in between.",
        fix="Print numbers, texts and tensors that do not change later, or accept the break.",
    )
