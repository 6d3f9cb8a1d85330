"""Owns the torch functions that read or change settings of the whole interpreter: autocast, default dtype and device.

Grad mode is in `torch_contexts.py`; the settings and their restoration are in `minidynamo/graph/torch_settings.py`.
Context managers that torch wrote in Python (`torch.autocast`) are traced down to these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minidynamo import compat
from minidynamo.graph.torch_settings import allow_attention, enter_device, leave_autocast, leave_device
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Result
from minidynamo.guards.state import default_device
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import constant, expect_constant, none
from minidynamo.tracer.records import registry
from minidynamo.variables.base import ConstantVariable, VariableTracker

# Questions about settings that the program may change; the guard of the global state covers their values on entry.
_SWITCHED: tuple[Callable[..., Any], ...] = (
    torch.is_autocast_enabled,
    torch.get_autocast_dtype,
    torch.is_autocast_cpu_enabled,
    torch.get_autocast_cpu_dtype,
    torch.get_autocast_gpu_dtype,
    torch.is_autocast_cache_enabled,
    torch.get_default_dtype,
    torch.is_inference_mode_enabled,
)

# Questions without arguments whose answers no captured program changes: the answer is guarded.
_GUARDED: tuple[Callable[..., Any], ...] = (
    torch.cuda.device_count,
    torch.cuda.is_available,
    torch.backends.mps.is_available,
    torch.are_deterministic_algorithms_enabled,
    torch.get_float32_matmul_precision,
    torch.get_num_threads,
    *((torch.distributed.is_initialized,) if torch.distributed.is_available() else ()),
    *compat.GUARDED_QUESTIONS,
)


def _question_handler(question: Callable[..., Any], guarded: bool) -> registry.Handler:
    name = getattr(question, "__name__", "question")

    def handle(tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        values = [expect_constant(tx, arg, f"an argument of {name}()") for arg in args]
        named = {key: expect_constant(tx, arg, f"an argument of {name}()") for key, arg in kwargs.items()}
        try:
            answer = question(*values, **named)
        except (RuntimeError, TypeError) as error:
            tx.raises(error)
        if guarded:
            tx.guard(Result(Constant(question, name)), GuardKind.EQUALS, answer)
        return constant(answer)

    return handle


@registry.function(compat.are_transforms_active)
def _are_transforms_active(tx: Tracer) -> VariableTracker:
    # The guard of the global state excludes outer transforms; transforms of the program may surround the traced code.
    if not tx.graph.may_break_here:
        tx.break_graph("MD207", "a question about transforms of torch.func", why="One may be running here.")
    return ConstantVariable(False)


for _question in _SWITCHED:
    registry.function(_question)(_question_handler(_question, guarded=False))
for _question in _GUARDED:
    registry.function(_question)(_question_handler(_question, guarded=True))


def _switch(function: Callable[..., Any]) -> registry.Handler:
    """Returns a handler that changes a setting permanently: during capture and, by a node, in the graph."""

    def handle(tx: Tracer, *args: VariableTracker) -> VariableTracker:
        values = [expect_constant(tx, arg, f"an argument of {function.__name__}()") for arg in args]
        try:
            tx.graph.switch(function, *values)
        except (RuntimeError, TypeError) as error:
            tx.raises(error)
        return none()

    return handle


for _function in (
    compat.set_default_dtype,
    torch.set_autocast_enabled,
    torch.set_autocast_dtype,
    torch.set_autocast_cache_enabled,
):
    registry.function(_function)(_switch(_function))


@registry.function(torch.autocast_increment_nesting)
def _enter_autocast(tx: Tracer) -> VariableTracker:
    tx.graph.switch(torch.autocast_increment_nesting)
    return ConstantVariable(1)


@registry.function(torch.autocast_decrement_nesting)
def _leave_autocast(tx: Tracer) -> VariableTracker:
    # The nesting depth around the graph is only known at run time, so the switch empties the cache itself.
    tx.graph.switch(leave_autocast)
    return ConstantVariable(1)


@registry.method(torch.device, "__enter__")
def _enter_device(tx: Tracer, device: ConstantVariable) -> VariableTracker:
    tx.graph.switch(enter_device, device.value)
    return device


@registry.method(torch.device, "__exit__")
def _leave_device(tx: Tracer, device: ConstantVariable, *error: VariableTracker) -> VariableTracker:
    tx.graph.switch(leave_device)
    return none()


def _attention(name: str, is_allowed: Callable[[], bool], allow: Callable[[bool], None]) -> None:
    @registry.function(is_allowed)
    def ask(tx: Tracer) -> VariableTracker:
        tx.graph.guard_attention()
        return ConstantVariable(is_allowed())

    @registry.function(allow)
    def switch(tx: Tracer, allowed: VariableTracker) -> VariableTracker:
        tx.graph.guard_attention()
        tx.graph.switch(allow_attention, name, expect_constant(tx, allowed, "the choice of an attention kernel"))
        return none()


for _name, _calls in compat.ATTENTION.items():
    _attention(_name, *_calls)


@registry.function(torch.get_default_device)
def _default_device(tx: Tracer) -> VariableTracker:
    return ConstantVariable(default_device())
