"""Owns torch.no_grad, enable_grad and set_grad_enabled during capture: switches in the graph, managers on the stack.

Other context managers of torch are in `torch_contexts.py`, calls of switches are in `torch_settings.py`.
"""

from __future__ import annotations

from typing import Any

import torch

from minidynamo.compat import set_grad_enabled
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import ContextVariable

# Mode inside the block; None: the mode is an argument.
_MODES: dict[Any, bool | None] = {torch.no_grad: False, torch.enable_grad: True, torch.autograd.set_grad_enabled: None}


@registry.function(torch.is_grad_enabled)
def _is_grad_enabled(tx: Tracer) -> VariableTracker:
    if tx.graph.subgraph is not None:
        tx.graph.subgraph.reads_grad_mode = True
    return ConstantVariable(torch.is_grad_enabled())


@registry.function(torch.no_grad)
def _no_grad(tx: Tracer, function: VariableTracker | None = None) -> VariableTracker:
    return _context(tx, torch.no_grad, function)


@registry.function(torch.enable_grad)
def _enable_grad(tx: Tracer, function: VariableTracker | None = None) -> VariableTracker:
    return _context(tx, torch.enable_grad, function)


def _context(tx: Tracer, factory: type, function: VariableTracker | None) -> VariableTracker:
    context = ContextVariable(factory)
    return context if function is None else tx.call(context, [function])


@registry.function(torch.autograd.set_grad_enabled)
def _set_grad_enabled(tx: Tracer, mode: VariableTracker) -> VariableTracker:
    """Switches immediately; as a context manager, restores the old mode at the end of the block."""
    enabled = _constant_mode(tx, mode)
    before = torch.is_grad_enabled()
    tx.graph.switch(set_grad_enabled, enabled)
    return ContextVariable(torch.autograd.set_grad_enabled, (enabled,), saved=before)


@registry.function(set_grad_enabled)
def _private_set_grad_enabled(tx: Tracer, mode: VariableTracker) -> VariableTracker:
    tx.graph.switch(set_grad_enabled, _constant_mode(tx, mode))
    return ConstantVariable(None)


def _constant_mode(tx: Tracer, mode: VariableTracker) -> bool:
    try:
        return bool(as_constant(mode))
    except NotConstant:
        tx.break_graph("MD208", "set_grad_enabled() is called with a value that is only known when the program runs")


@registry.function(*(factory.__enter__ for factory in _MODES))
def _enter(tx: Tracer, context: VariableTracker) -> VariableTracker:
    mode = next(mode for factory, mode in _MODES.items() if issubclass(context.python_type, factory))
    if mode is None:  # the mode to restore is the mode before its construction
        mode = (
            context.args[0] if isinstance(context, ContextVariable) else _constant_mode(tx, tx.getattr(context, "mode"))
        )
    elif isinstance(context, ContextVariable):
        context.saved = torch.is_grad_enabled()
    else:
        tx.call(setattr, [context, ConstantVariable("prev"), ConstantVariable(torch.is_grad_enabled())])
    if mode is not torch.is_grad_enabled():
        tx.graph.switch(set_grad_enabled, mode)
    return ConstantVariable(None)


@registry.function(*(factory.__exit__ for factory in _MODES))
def _exit(tx: Tracer, context: VariableTracker, *error: VariableTracker) -> VariableTracker:
    """Restores the mode. A manager made outside (or open at the break before this frame) stores the mode in `prev`."""
    saved = context.saved if isinstance(context, ContextVariable) else as_constant(tx.getattr(context, "prev"))
    tx.graph.switch(set_grad_enabled, saved)
    return ConstantVariable(None)
