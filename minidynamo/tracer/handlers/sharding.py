"""Owns modules that `fully_shard` or `parallelize_module` has changed, during capture.

FSDP's two hooks become nodes of the graph. Between the two nodes the parameters of the module are results of the first
node. A layer whose parameters are DTensors is one node. The node functions are in `graph/sharding.py`.
"""

# The functions at the end are traced, not called.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from minidynamo import compat
from minidynamo.errors import an
from minidynamo.graph.sharding import after_forward, before_forward, parallel_call
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Called, Constant
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.collectives import communicate
from minidynamo.tracer.handlers.values import constant
from minidynamo.tracer.polyfills.modules import call_parallel, is_parallel
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.registry import cannot_trace
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import ListVariable
from minidynamo.variables.objects import ModuleVariable, ObjectVariable
from minidynamo.variables.tensors import TensorVariable


@registry.late_function(compat.SHARDING, "FSDPState._pre_forward")
def _pre_forward(tx: Tracer, state: VariableTracker, *arguments: VariableTracker) -> VariableTracker:
    return tx.call(tx.wrap(_prepare, None), [state, *arguments[1:]])


@registry.late_function(compat.SHARDING, "FSDPState._post_forward")
def _post_forward(tx: Tracer, state: VariableTracker, *arguments: VariableTracker) -> VariableTracker:
    return tx.call(tx.wrap(_complete, None), [state, *arguments[2:]])


def _facts(tx: Tracer, state: VariableTracker) -> tuple[Any, compat.ShardingFacts]:
    """Returns the state of a sharded module and the facts about it, both guarded."""
    value = state.value if isinstance(state, ObjectVariable) else None
    facts = None if value is None else compat.sharding_facts(value)
    if facts is None or state.source is None:
        why = "Several modules share it, or its parameters are no plain tensors when they are gathered."
        tx.break_graph("MD207", "a group of parameters that fully_shard has sharded", why=why)
    tx.guard(state.source, GuardKind.IDENTITY, value)
    tx.guard(Called(Constant(compat.sharding_facts, "sharding_facts"), (state.source,)), GuardKind.EQUALS, facts)
    return value, facts


def _gather(state: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
    raise NotImplementedError  # handled below


def _free(state: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
    raise NotImplementedError  # handled below


@registry.function(_gather)
def _gathered(tx: Tracer, state: VariableTracker, *tensors: VariableTracker) -> VariableTracker:
    value, facts = _facts(tx, state)
    items = tx.unpack(communicate(tx, before_forward(value, facts), [], *tensors, constant(facts.group)))
    for present, gathered in zip(compat.present_parameters(value), items[len(tensors) :]):
        tx.graph.values.replace(present, gathered)
    return ListVariable(items[: len(tensors)])


@registry.function(_free)
def _freed(tx: Tracer, state: VariableTracker, *tensors: VariableTracker) -> VariableTracker:
    value, facts = _facts(tx, state)
    for present in compat.present_parameters(value):
        tx.graph.values.replace(present, None)
    return communicate(tx, after_forward(value, facts), [], *tensors, constant(facts.group))


# Modules that `parallelize_module` has changed


@registry.function(is_parallel)
def _is_parallel(tx: Tracer, module: ModuleVariable, args: VariableTracker, kwargs: VariableTracker) -> VariableTracker:
    facts = None if module.value is None else compat.parallel_facts(module.value)
    tensors = tx.unpack(args)
    if (
        facts is None
        or module.source is None
        or tx.unpack(kwargs)
        or not all(isinstance(tensor, TensorVariable) for tensor in tensors)
    ):
        return constant(False)
    tx.guard(module.source, GuardKind.IDENTITY, module.value)
    tx.guard(Called(Constant(compat.parallel_facts, "parallel_facts"), (module.source,)), GuardKind.EQUALS, facts)
    return constant(True)


@registry.function(call_parallel)
def _call_parallel(tx: Tracer, module: ModuleVariable, *tensors: VariableTracker) -> VariableTracker:
    assert module.value is not None
    with tx.graph.real_tensors_in_calls():
        result = communicate(tx, parallel_call(module.value), [], *tensors)
    if not isinstance(result, TensorVariable):
        tx.break_graph("MD214", f"{an(module.cls.__name__)} returns a DTensor", why="Its values are on several ranks.")
    return result


# Traced functions


def _prepare(state, args, kwargs):
    return _with_tensors((args, kwargs), lambda tensors: _gather(state, *tensors))


def _complete(state, output):
    return _with_tensors(output, lambda tensors: _free(state, *tensors))


def _with_tensors(value, change):
    tensors = _tensors(value)
    changed = change(tensors)
    if all(new is old for new, old in zip(changed, tensors)):
        return value
    return _replaced(value, iter(changed))


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        return cannot_trace("a sharded module gets or returns a dataclass", "FSDP changes the tensors in it")
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, list | tuple) else []


def _replaced(value, tensors):
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if type(value) is dict:
        return {key: _replaced(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_replaced(item, tensors) for item in value])
    if isinstance(value, list | tuple | dict):
        return cannot_trace(f"a sharded module gets or returns a {type(value).__name__}", "FSDP changes tensors in it")
    return value
