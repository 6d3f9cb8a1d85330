"""Owns the torch function mode `TransformGetItemToIndex` during capture, in which tensors are subscripted by tensors.

Masks of transformers and of flex attention call a function of positions under vmap, which cannot read a position as a
number. Other modes decide themselves what an operation means, and are not captured.
"""

from __future__ import annotations

from minidynamo.compat import is_index_mode, pop_function_mode, push_function_mode
from minidynamo.errors import an
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import none
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker

_WHY = "The mode decides what each operation means."


@registry.function(push_function_mode)
def _push(tx: Tracer, mode: VariableTracker) -> VariableTracker:
    if not is_index_mode(mode.python_type):
        tx.break_graph("MD207", f"{an(mode.python_type.__name__)} becomes active", why=_WHY)
    tx.function_modes.append(mode)
    return none()


@registry.function(pop_function_mode)
def _pop(tx: Tracer) -> VariableTracker:
    if not tx.function_modes:
        tx.break_graph("MD207", "a mode that was entered outside of the graph ends", why=_WHY)
    return tx.function_modes.pop()
