"""Owns torch.distributed during capture: collectives become graph nodes, and facts about groups and meshes constants.

A fact is guarded where the program finds the group: rank, number of processes, backend and name. The graph has the name
of the group only. The node functions are in `graph/collectives.py`. Functional collectives are traced down to their
operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from minidynamo import compat
from minidynamo.graph import collectives
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Called, Constant, Result
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import constant, expect_constant, none
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import from_constant
from minidynamo.tracer.wrappers.objects import opaque
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.objects import OpaqueVariable
from minidynamo.variables.tensors import HookVariable, TensorVariable

_WHY = "Other ranks take part in it."


# Process groups


def _facts(tx: Tracer, group: VariableTracker | None) -> compat.GroupFacts:
    """Returns the facts about a group, guarded; None is the default group."""
    if group is None or (isinstance(group, ConstantVariable) and group.value is None):
        facts = compat.default_group_facts()
        tx.guard(Result(Constant(compat.default_group_facts, "default_group_facts")), GuardKind.EQUALS, facts)
        return _raise_uninitialized(tx) if facts is None else facts
    if isinstance(group, ConstantVariable) and isinstance(group.value, str):
        return compat.group_facts(compat.group_named(group.value))
    value = group.value if isinstance(group, OpaqueVariable) else None
    if isinstance(value, DeviceMesh) and value.ndim == 1:
        return _facts(tx, _group_of_mesh(tx, group))
    if not isinstance(value, dist.ProcessGroup):
        tx.break_graph("MD207", f"a collective among a {group.python_type.__name__}", why="It is no process group.")
    facts = compat.group_facts(value)
    if group.source is not None:
        tx.guard(Called(Constant(compat.group_facts, "group_facts"), (group.source,)), GuardKind.EQUALS, facts)
    return facts


def _raise_uninitialized(tx: Tracer) -> NoReturn:
    try:
        compat.default_group()
    except (ValueError, RuntimeError) as error:
        tx.raises(error)
    raise AssertionError("there is no default group")


registry.wrapper(dist.ProcessGroup)(opaque)
registry.wrapper(DeviceMesh)(opaque)


def _default(tx: Tracer, *_: VariableTracker) -> VariableTracker:
    _facts(tx, None)
    return tx.wrap(compat.default_group(), Result(Constant(compat.default_group, "default_group")))


for _getter in compat.DEFAULT_GROUP_GETTERS:
    registry.function(_getter)(_default)


def _fact(number: int) -> registry.Handler:
    return lambda tx, group=None: constant(_facts(tx, group)[number])


for _number, _functions in enumerate(((dist.get_rank,), (dist.get_world_size,), (dist.get_backend,)), 1):
    registry.function(*_functions)(_fact(_number))
for _number, _methods in enumerate(compat.GROUP_METHODS):
    registry.opaque_method(*_methods)(_fact(_number))


# Device meshes


def _mesh_question(question: Callable[..., Any]) -> registry.Handler:
    def ask(tx: Tracer, mesh: OpaqueVariable, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        values = [expect_constant(tx, arg, "an argument of a method of DeviceMesh") for arg in args]
        named = {name: expect_constant(tx, arg, f"`{name}` of a method of DeviceMesh") for name, arg in kwargs.items()}
        try:
            found = question(mesh.value, *values, **named)
        except Exception as error:
            tx.raises(error)
        if mesh.source is None:
            return tx.wrap(found, None)
        facts = compat.mesh_facts(mesh.value)
        tx.guard(Called(Constant(compat.mesh_facts, "mesh_facts"), (mesh.source,)), GuardKind.EQUALS, facts)
        if isinstance(found, dist.ProcessGroup | DeviceMesh):
            given = [mesh.source, *(Constant(value, "argument") for value in (*values, *named.values()))]
            return tx.wrap(found, Called(Constant(question, question.__name__), tuple(given), tuple(named)))
        return from_constant(found)

    return ask


for _question in compat.MESH_QUESTIONS:
    registry.opaque_method(_question)(_mesh_question(_question))


def _group_of_mesh(tx: Tracer, mesh: VariableTracker) -> VariableTracker:
    return tx.call_method(mesh, "get_group")


# Collectives


def _communicate(
    tx: Tracer, function: Callable[..., Any], written: VariableTracker | None, *args: VariableTracker
) -> VariableTracker:
    """Adds a collective to the graph, which writes to the tensor `written`."""
    if tx.graph.subgraph is not None:
        tx.break_graph("MD207", f"{function.__name__}() is called in a part of the graph that may run twice", why=_WHY)
    tensors = [arg for arg in (written, *args) if arg is not None and not isinstance(arg, ConstantVariable)]
    if not all(isinstance(tensor, TensorVariable | HookVariable) for tensor in tensors[:1]):
        tx.break_graph("MD207", f"{function.__name__}() is not called with tensors", why="Torch raises the error.")
    result = tx.emit(function, args if written is None else [written, *args])
    node = next(iter(reversed(tx.graph.graph.nodes)))
    node.meta["mutates"] = True
    if isinstance(written, TensorVariable):
        memory = compat.memory_of(tx.graph.use(written))
        node.meta["written_memory"] = (memory,)
        tx.graph.tensor_numbers[memory] = lambda: None
    return result


def _name(tx: Tracer, group: VariableTracker | None) -> VariableTracker:
    return constant(_facts(tx, group)[0])


def _reduction(tx: Tracer, op: VariableTracker | None) -> VariableTracker:
    if op is None:
        return constant("SUM")
    value = op.value if isinstance(op, ConstantVariable | OpaqueVariable) else None
    name = getattr(value, "name", None)
    if not isinstance(value, compat.REDUCTIONS) or not isinstance(name, str):
        tx.break_graph("MD207", "a collective with this reduction", why="It is no constant of ReduceOp.")
    return constant(name)


def _asynchronous(tx: Tracer, async_op: VariableTracker | None) -> VariableTracker:
    return constant(False if async_op is None else tx.truth(async_op))


@registry.function(dist.all_reduce)
def _all_reduce(
    tx: Tracer,
    tensor: VariableTracker,
    op: VariableTracker | None = None,
    group: VariableTracker | None = None,
    async_op: VariableTracker | None = None,
) -> VariableTracker:
    how = _reduction(tx, op), _name(tx, group), _asynchronous(tx, async_op)
    return _communicate(tx, collectives.all_reduce, tensor, *how)


@registry.function(dist.broadcast)
def _broadcast(
    tx: Tracer,
    tensor: VariableTracker,
    src: VariableTracker | None = None,
    group: VariableTracker | None = None,
    async_op: VariableTracker | None = None,
    group_src: VariableTracker | None = None,
) -> VariableTracker:
    how = src or none(), _name(tx, group), group_src or none(), _asynchronous(tx, async_op)
    return _communicate(tx, collectives.broadcast, tensor, *how)


@registry.function(*compat.ALL_GATHERS)
def _all_gather(
    tx: Tracer,
    output_tensor: VariableTracker,
    input_tensor: VariableTracker,
    group: VariableTracker | None = None,
    async_op: VariableTracker | None = None,
) -> VariableTracker:
    how = input_tensor, _name(tx, group), _asynchronous(tx, async_op)
    return _communicate(tx, collectives.all_gather_into_tensor, output_tensor, *how)


@registry.function(*compat.REDUCE_SCATTERS)
def _reduce_scatter(
    tx: Tracer,
    output: VariableTracker,
    input: VariableTracker,
    op: VariableTracker | None = None,
    group: VariableTracker | None = None,
    async_op: VariableTracker | None = None,
) -> VariableTracker:
    how = input, _reduction(tx, op), _name(tx, group), _asynchronous(tx, async_op)
    return _communicate(tx, collectives.reduce_scatter_tensor, output, *how)


@registry.function(dist.all_to_all_single)
def _all_to_all(
    tx: Tracer,
    output: VariableTracker,
    input: VariableTracker,
    output_split_sizes: VariableTracker | None = None,
    input_split_sizes: VariableTracker | None = None,
    group: VariableTracker | None = None,
    async_op: VariableTracker | None = None,
) -> VariableTracker:
    splits = [
        none() if sizes is None else from_constant(_sizes(tx, sizes))
        for sizes in (output_split_sizes, input_split_sizes)
    ]
    how = input, *splits, _name(tx, group), _asynchronous(tx, async_op)
    return _communicate(tx, collectives.all_to_all_single, output, *how)


def _sizes(tx: Tracer, sizes: VariableTracker) -> tuple[int, ...] | None:
    if isinstance(sizes, ConstantVariable) and sizes.value is None:
        return None
    return tuple(expect_constant(tx, size, "a size of a part") for size in tx.unpack(sizes))


@registry.function(dist.barrier)
def _barrier(tx: Tracer, group: VariableTracker | None = None, **options: VariableTracker) -> VariableTracker:
    if options:
        tx.break_graph("MD207", f"barrier() is called with {', '.join(options)}", why=_WHY)
    return _communicate(tx, collectives.barrier, None, _name(tx, group))


@registry.method(dist.Work, "wait")
def _wait(tx: Tracer, work: HookVariable) -> VariableTracker:
    _communicate(tx, collectives.wait, work)
    return constant(True)


# Functional collectives


def _group_name(tx: Tracer, group: VariableTracker, tag: VariableTracker | None = None) -> VariableTracker:
    pair = group if group.python_type is tuple else None
    if pair is not None:
        mesh, dim = tx.unpack(pair)
        group = tx.call_method(mesh, "get_group", [dim])
    return _name(tx, group)


def _wait_tensor(tx: Tracer, tensor: VariableTracker) -> VariableTracker:
    return tx.call(tx.wrap(compat.wait_tensor(), None), [tensor])


for _function in ("_resolve_group", "_resolve_group_name", "_group_or_group_name"):
    registry.late_function(compat.FUNCTIONAL_COLLECTIVES, _function)(_group_name)
registry.late_function(compat.FUNCTIONAL_COLLECTIVES, "_maybe_wrap_tensor")(_wait_tensor)
registry.function(compat.group_size_by_name)(lambda tx, name: constant(_facts(tx, name)[2]))
