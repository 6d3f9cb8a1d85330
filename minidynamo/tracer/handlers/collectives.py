"""Owns torch.distributed during capture: collectives become graph nodes, and facts about groups and meshes constants.

A fact is guarded where the program finds the group: rank, number of processes, backend and name. The graph has the name
of the group only. The node functions are in `graph/collectives.py`. Functional collectives are traced down to their
operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from minidynamo import compat
from minidynamo.errors import an
from minidynamo.graph import collectives
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Called, Constant, Result
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import constant, expect_constant, none
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import from_constant
from minidynamo.tracer.wrappers.objects import opaque
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import SequenceVariable, TupleVariable
from minidynamo.variables.objects import OpaqueVariable
from minidynamo.variables.tensors import OpaqueResult, TensorVariable

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
        tx.break_graph("MD207", f"a collective among {an(group.python_type.__name__)}", why="It is no process group.")
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
            answer = question(mesh.value, *values, **named)
        except Exception as error:
            tx.raises(error)
        if mesh.source is None:
            return tx.wrap(answer, None)
        facts = compat.mesh_facts(mesh.value)
        tx.guard(Called(Constant(compat.mesh_facts, "mesh_facts"), (mesh.source,)), GuardKind.EQUALS, facts)
        if isinstance(answer, dist.ProcessGroup | DeviceMesh):
            arguments = [mesh.source, *(Constant(value, "argument") for value in (*values, *named.values()))]
            return tx.wrap(answer, Called(Constant(question, question.__name__), tuple(arguments), tuple(named)))
        return from_constant(answer)

    return ask


for _question in compat.MESH_QUESTIONS:
    registry.opaque_method(_question)(_mesh_question(_question))


def _group_of_mesh(tx: Tracer, mesh: VariableTracker) -> VariableTracker:
    return tx.call_method(mesh, "get_group")


# Collectives


def communicate(
    tx: Tracer, function: Callable[..., Any], written: Iterable[VariableTracker], *args: VariableTracker
) -> VariableTracker:
    """Adds a call that communicates to the graph; it writes to the tensors `written`."""
    if tx.graph.subgraph is not None:
        tx.break_graph("MD207", f"{function.__name__}() is called in a part of the graph that may run twice", why=_WHY)
    result = tx.emit(function, args)
    node = next(node for node in reversed(tx.graph.graph.nodes) if node.target is function)
    node.meta["mutates"] = True
    memories = [compat.memory_of(tx.graph.use(tensor)) for tensor in written if isinstance(tensor, TensorVariable)]
    node.meta["written_memory"] = tuple(memories)
    tx.graph.forget_numbers(memories)
    return result


def _handler(name: str, written: str | None) -> registry.Handler:
    """Returns the handler for a function of torch.distributed that communicates."""

    def handle(tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        parameters = collectives.parameters(name)
        passed = dict(zip(parameters, args)) | kwargs
        required = {each for each, parameter in parameters.items() if parameter.default is parameter.empty}
        if len(passed) < len(args) + len(kwargs) or not required <= passed.keys() <= parameters.keys():
            tx.break_graph("MD207", f"{name}() with other arguments", why="Torch raises the error.")
        arguments = {each: _argument(tx, name, each, passed.get(each)) for each in parameters}
        outputs = [] if written is None else _tensors(tx, name, arguments[written])
        result = communicate(tx, collectives.NODE_FUNCTIONS[name], outputs, *arguments.values())
        return arguments["src"] if name == "recv" else result

    return handle


def _argument(tx: Tracer, function: str, name: str, arg: VariableTracker | None) -> VariableTracker:
    """Returns the argument of a collective's node for the argument `arg` of the call; None if it was left out."""
    if name == "group":
        return constant(_facts(tx, arg)[0])
    if name == "op":
        return _reduction(tx, arg)
    if name == "async_op":
        return constant(False if arg is None else tx.truth(arg))
    if name.endswith("_split_sizes"):
        return none() if arg is None else from_constant(_sizes(tx, arg))
    if name in ("src", "dst", "tag", "group_src", "group_dst"):
        value = expect_constant(tx, arg, f"`{name}` of {function}()") if arg is not None else None
        if function == "recv" and name == "src" and value is None:
            tx.break_graph("MD207", "recv() from any rank, or from a rank of a group", why="It returns the rank.")
        return constant(0 if name == "tag" and arg is None else value)
    if arg is not None:
        _tensors(tx, function, arg)
    return arg or none()


def _tensors(tx: Tracer, function: str, value: VariableTracker) -> list[VariableTracker]:
    """Returns the tensors of an argument: a tensor, None, or a list or tuple of tensors."""
    if isinstance(value, ConstantVariable) and value.value is None:
        return []
    found = tx.unpack(value) if isinstance(value, SequenceVariable) else [value]
    if not all(isinstance(tensor, TensorVariable) for tensor in found):
        tx.break_graph("MD207", f"{function}() is not called with tensors", why="Torch raises the error.")
    return found


def _reduction(tx: Tracer, op: VariableTracker | None) -> VariableTracker:
    if op is None:
        return constant("SUM")
    value = op.value if isinstance(op, ConstantVariable | OpaqueVariable) else None
    name = getattr(value, "name", None)
    if not isinstance(value, compat.REDUCTIONS) or not isinstance(name, str):
        tx.break_graph("MD207", "a collective with this reduction", why="It is no constant of ReduceOp.")
    return constant(name)


def _sizes(tx: Tracer, sizes: VariableTracker) -> tuple[int, ...] | None:
    if isinstance(sizes, ConstantVariable) and sizes.value is None:
        return None
    return tuple(expect_constant(tx, size, "a size of a part") for size in tx.unpack(sizes))


for _name, _written in compat.COLLECTIVES.items():
    registry.function(getattr(dist, _name))(_handler(_name, _written))
for _names in (compat.ALL_GATHERS, compat.REDUCE_SCATTERS):
    _name = _names[-1].__name__
    registry.function(*_names[:-1])(_handler(_name, compat.COLLECTIVES[_name]))


@registry.function(dist.barrier)
def _barrier(tx: Tracer, group: VariableTracker | None = None, **options: VariableTracker) -> VariableTracker:
    if options:
        tx.break_graph("MD207", f"barrier() is called with {', '.join(options)}", why=_WHY)
    return communicate(tx, collectives.barrier, [], constant(_facts(tx, group)[0]))


# Batches of sends and receives


@registry.function(dist.P2POp.__new__)
def _new_operation(tx: Tracer, cls: VariableTracker, *_: VariableTracker, **__: VariableTracker) -> VariableTracker:
    return tx.call(tx.wrap(object.__new__, None), [cls])


@registry.polyfill(dist.P2POp.__init__)
def _fill_operation(self, op, tensor, peer=None, group=None, tag=0, group_peer=None):  # type: ignore[no-untyped-def]
    self.op, self.tensor, self.tag = op, tensor, tag
    self.group = dist.group.WORLD if group is None else group
    self.peer = dist.get_global_rank(self.group, group_peer) if peer is None else peer
    self.group_peer = dist.get_group_rank(self.group, peer) if group_peer is None else group_peer


def _rank_question(question: Callable[..., int]) -> registry.Handler:
    def ask(tx: Tracer, group: VariableTracker, rank: VariableTracker) -> VariableTracker:
        _facts(tx, group)
        value = group.value if isinstance(group, OpaqueVariable) else None
        ranks = dist.get_process_group_ranks(value)
        if group.source is not None:
            source = Called(Constant(dist.get_process_group_ranks, "ranks"), (group.source,))
            tx.guard(source, GuardKind.EQUALS, ranks)
        return constant(question(value, expect_constant(tx, rank, "a rank")))

    return ask


for _rank_of in (dist.get_global_rank, dist.get_group_rank):
    registry.function(_rank_of)(_rank_question(_rank_of))


@registry.function(dist.batch_isend_irecv)
def _batch(tx: Tracer, p2p_op_list: VariableTracker) -> VariableTracker:
    ops, written = [], []
    for op in tx.unpack(p2p_op_list):
        function, tensor, peer, tag, group = (
            tx.getattr(op, name) for name in ("op", "tensor", "group_peer", "tag", "group")
        )
        name = getattr(getattr(function, "value", None), "__name__", "")
        if name not in ("isend", "irecv") or not isinstance(tensor, TensorVariable):
            tx.break_graph("MD207", "a batch of other operations", why="Torch raises the error.")
        facts = _facts(tx, group)
        if compat.coalesces(compat.group_named(facts[0]), tensor.fake.device):
            tx.break_graph(
                "MD207", "batch_isend_irecv() on this backend", why="It returns one Work for all operations."
            )
        written += [tensor] if name == "irecv" else []
        numbers = (constant(expect_constant(tx, number, "a rank or tag")) for number in (peer, tag))
        ops.append(TupleVariable([constant(name), tensor, *numbers, constant(facts[0])], tuple))
    return communicate(tx, collectives.batch_isend_irecv, written, TupleVariable(ops, tuple))


@registry.method(dist.Work, "wait")
def _wait(tx: Tracer, work: OpaqueResult) -> VariableTracker:
    communicate(tx, collectives.wait, [], work)
    return constant(True)


# Functional collectives


def _group_name(tx: Tracer, group: VariableTracker, tag: VariableTracker | None = None) -> VariableTracker:
    pair = group if group.python_type is tuple else None
    if pair is not None:
        mesh, dim = tx.unpack(pair)
        group = tx.call_method(mesh, "get_group", [dim])
    return constant(_facts(tx, group)[0])


def _wait_tensor(tx: Tracer, tensor: VariableTracker) -> VariableTracker:
    return tx.call(tx.wrap(compat.wait_tensor(), None), [tensor])


for _function in ("_resolve_group", "_resolve_group_name", "_group_or_group_name"):
    registry.late_function(compat.FUNCTIONAL_COLLECTIVES, _function)(_group_name)
registry.late_function(compat.FUNCTIONAL_COLLECTIVES, "_maybe_wrap_tensor")(_wait_tensor)
registry.function(compat.group_size_by_name)(lambda tx, name: constant(_facts(tx, name)[2]))
