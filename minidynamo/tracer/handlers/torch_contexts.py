"""Owns torch's context managers during capture: grad mode with its switches in the graph, record_function, and context
managers as decorators.

Calls of other switches are in `torch_settings.py`; autocast and device contexts are traced down to their switches.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any

import torch

from minidynamo.compat import set_grad_enabled
from minidynamo.graph.torch_settings import enter_inference_mode, leave_inference_mode, settings
from minidynamo.guards.source import Constant
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import constant, expect_constant, none
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable, ContextVariable, FunctionVariable, NestedFunctionVariable
from minidynamo.variables.objects import ObjectVariable

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
    """Restores the mode. A manager created outside (or open at the break before this frame) stores it in `prev`."""
    saved = context.saved if isinstance(context, ContextVariable) else as_constant(tx.getattr(context, "prev"))
    tx.graph.switch(set_grad_enabled, saved)
    return ConstantVariable(None)


record_function = torch.autograd.profiler.record_function
_EXIT_RANGE = record_function.__exit__
_CONTEXTS = (*_MODES, torch.inference_mode, record_function)


def decorate(factory: Any, arguments: Any, function: Any) -> Any:
    """Polyfill of `factory(*arguments)(function)`."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with factory(*arguments):
            return function(*args, **kwargs)

    return run


def decorate_by_manager(manager: Any, function: Any) -> Any:
    """Polyfill of `contextlib.ContextDecorator.__call__`, for torch classes that inherit it."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with manager._recreate_cm():
            return function(*args, **kwargs)

    return run


@registry.function(
    *{vars(base)["__call__"] for cls in _CONTEXTS for base in cls.__mro__ if "__call__" in vars(base)},
)
def _decorate(tx: Tracer, context: VariableTracker, function: VariableTracker) -> VariableTracker:
    """Decorates a function with a context that was created during capture, as in `torch.no_grad()(function)`."""
    if isinstance(context, ObjectVariable) and issubclass(context.cls, contextlib.ContextDecorator):
        return tx.call(decorate_by_manager, [context, function])
    code = function.code if isinstance(function, NestedFunctionVariable) else None
    code = function.value.__code__ if isinstance(function, FunctionVariable) else code
    if not isinstance(context, ContextVariable) or code is None or code.co_flags & inspect.CO_GENERATOR:
        tx.break_graph("MD213", f"torch.{context.python_type.__name__} decorates something other than a function")
    if context.factory is torch.autograd.set_grad_enabled:  # its construction switched the mode; undo the switch
        tx.call(torch.autograd.set_grad_enabled, [ConstantVariable(context.saved)])
    return tx.call(decorate, [tx.wrap(context.factory, None), constant(context.args), function])


@registry.attributes(ContextVariable)
def _attribute(tx: Tracer, context: ContextVariable, name: str) -> VariableTracker | None:
    """Returns an attribute that `__init__` or `__enter__` sets on a context of the program; None for class
    attributes."""
    if hasattr(context.python_type, name):
        return None
    if context.saved is not None and context.factory in _MODES:
        if name == "prev":
            return ConstantVariable(context.saved)
        if name == "mode" and context.args:
            return ConstantVariable(context.args[0])
    tx.break_graph("MD206", f"`{name}` of torch.{context.python_type.__name__} is read", why="Only Python knows it.")


@registry.function(record_function)
def _record_function(tx: Tracer, name: VariableTracker, args: VariableTracker | None = None) -> VariableTracker:
    """Makes a profiler range. Kernels have names of their own; the real range is entered only at a graph break."""
    values = [expect_constant(tx, value, "the name of a profiler range") for value in (name, args) if value is not None]
    return ContextVariable(record_function, tuple(values))


@registry.function(record_function.__enter__, record_function.__exit__)
def _enter_or_leave_range(tx: Tracer, context: VariableTracker, *error: VariableTracker) -> VariableTracker:
    """Emits nothing. An external range must not be open at a break: no code would enter it there.

    A range that was entered outside, for example before a break, is exited after the graph.
    """
    if isinstance(context, ContextVariable):
        context.depth = None if error else 0
    elif len(tx.frames) > 1:
        pass  # entered and exited in the same inlined frame
    elif error and _is_open(tx, context) and all(isinstance(part, ConstantVariable) for part in error):
        tx.side_effects.record_call(
            BuiltinVariable(_EXIT_RANGE, source=Constant(_EXIT_RANGE, "leave")), context, *error
        )
    else:
        tx.break_graph("MD213", "a profiler range that was created outside of the graph is used")
    return context if not error else none()


def _is_open(tx: Tracer, context: VariableTracker) -> bool:
    """Returns whether an external range is entered. On an exit without an error, `error` has only Nones."""
    if not isinstance(context, ObjectVariable) or context.source is None:
        return False
    record = tx.getattr(context, "record")
    return not isinstance(record, ConstantVariable)


@registry.function(torch.inference_mode)
def _inference_mode(tx: Tracer, mode: VariableTracker | None = None) -> VariableTracker:
    if isinstance(mode, FunctionVariable | NestedFunctionVariable):
        return tx.call(ContextVariable(torch.inference_mode, (True,)), [mode])
    enabled = True if mode is None else bool(expect_constant(tx, mode, "the mode of inference_mode()"))
    return ContextVariable(torch.inference_mode, (enabled,))


@registry.function(torch.inference_mode.__enter__)
def _enter_inference_mode(tx: Tracer, context: VariableTracker) -> VariableTracker:
    if not isinstance(context, ContextVariable):
        tx.break_graph("MD213", "an inference mode that was created outside of the graph is entered")
    context.saved, context.depth = torch.is_grad_enabled(), len(settings().inference)
    tx.graph.switch(enter_inference_mode, *context.args)
    return none()


@registry.function(torch.inference_mode.__exit__)
def _leave_inference_mode(tx: Tracer, context: VariableTracker, *error: VariableTracker) -> VariableTracker:
    if not isinstance(context, ContextVariable):
        tx.break_graph("MD213", "an inference mode that was entered outside of the graph ends")
    if context.depth is None or context.depth + 1 != len(settings().inference):
        tx.break_graph("MD213", "blocks of inference mode do not end in the order in which they began")
    context.depth = None
    tx.graph.switch(leave_inference_mode)
    return none()
