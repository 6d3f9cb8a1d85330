"""Owns the graph under construction: how a call becomes a node, and a result a tracker.

Operations run on fake tensors first (`fake_tensors.py`), with what stands for their arguments (`arguments.py`). What
the graph takes from outside is in `inputs.py`, who is who in `known_values.py`, which graph is open in
`open_graphs.py`; `tracer/capture/trace.py` says what to record.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
import torch.fx
from torch.utils.hooks import RemovableHandle

from minidynamo.compat import (
    ATTENTION_FUNCTIONS,
    SYMBOLIC_NUMBERS,
    OpOverload,
    constant_behind,
    constant_of,
    forget_constant,
    keeping_thread_state,
    memory_of,
    written_lists,
)
from minidynamo.errors import UserLocation
from minidynamo.graph.func_transforms import Transformation
from minidynamo.graph.pytree import leaves, nodes_in, tensors_in
from minidynamo.graph.tensor_index import at_first_places
from minidynamo.graph.torch_settings import allowed_attention, settings, way_to
from minidynamo.guards.class_checks import ClassChecks
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.guard_list import GuardList
from minidynamo.guards.profile import FrameProfile
from minidynamo.guards.shapes import Shapes
from minidynamo.guards.source import Computed, Constant, Result, Size, Source, TensorFact, is_read_anew
from minidynamo.tracer.graph.arguments import Arguments, NotInGraph
from minidynamo.tracer.graph.constant_folding import folded
from minidynamo.tracer.graph.dead_code import remove_dead_code
from minidynamo.tracer.graph.fake_tensors import FakeTensors, Versions, has_symbols, without_symbols
from minidynamo.tracer.graph.inputs import GraphInputs
from minidynamo.tracer.graph.known_values import KnownValues
from minidynamo.tracer.graph.open_graphs import OpenGraphs, give
from minidynamo.tracer.graph.subgraphs import GraphValue, Subgraph
from minidynamo.tracer.graph.written_places import Lookups, Writes, find_writes
from minidynamo.tracer.protocol import Number
from minidynamo.tracer.records.constants import NotConstant, from_constant
from minidynamo.tracer.records.copies import anew
from minidynamo.tracer.records.traced_frame import GraphInput
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import (
    ListVariable,
    TupleVariable,
)
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import LazyVariable
from minidynamo.variables.tensors import HookVariable, StorageVariable, TensorVariable

_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


class OutputGraph:
    """One trace's graph. `where` tells the user's line; `steal` and `spread` are those of `GraphInputs`, `expects` that
    of `FrameRequest`."""

    def __init__(
        self,
        where: Callable[[], UserLocation | None],
        steal: frozenset[Source] = frozenset(),
        spread: frozenset[Source] = frozenset(),
        profile: FrameProfile | None = None,
        *,
        expects: bool = False,
    ) -> None:
        self._where = where
        self.expects = expects
        self.may_end = True  # at a graph break
        # Called with the place of a number, and the number, before that becomes a constant.
        self.on_pin: Callable[[Source, object], object] = lambda place, value: None
        self._open = OpenGraphs()
        self._guards = GuardList(where)
        self.shapes = Shapes(FrameProfile(dynamic=False) if profile is None else profile, where)
        self._fakes = FakeTensors(self.shapes)
        self.values = KnownValues()
        self.inputs = GraphInputs(
            self._open.root, where, self.shapes, self._guards, self._fakes, self.values, steal, spread
        )
        self._arguments = Arguments(self._open, self.inputs)
        # The trackers whose identity was asked for, as the key of a dict or an element of a set.
        self.identity_keys: dict[VariableTracker, None] = {}
        # The numbers that tensors of one element hold, by their memory (`tracer/numbers/tensor_items.py`).
        self.held_numbers: dict[object, Number] = {}
        # The storages that the program has asked for, by their memory (`handlers/storages.py`).
        self.storages: dict[object, StorageVariable] = {}
        # Of which tensor a count of writes was read, and how often its fake one counted as written then.
        self.write_counts: dict[VariableTracker, tuple[TensorVariable, int]] = {}
        self.class_checks = ClassChecks()
        self.time = 0  # how many operations have been recorded
        self.entry_settings = settings()

    @property
    def may_end_here(self) -> bool:
        """Whether the graph may end in what is being traced, or in front of it."""
        return self.may_end and self.may_be_left

    @property
    def may_be_left(self) -> bool:
        """Whether every subgraph that is open may run eagerly instead, after a graph break."""
        return self._open.may_be_left

    # What is known of the outside

    @property
    def guards(self) -> Sequence[Guard]:
        """The guards so far, in the order of installation."""
        return tuple(self._guards)

    def guard(self, source: Source, kind: GuardKind, expected: object) -> None:
        """Install a guard, once."""
        self._guards.install(source, kind, expected)

    def guard_attention(self) -> None:
        """Guard what attention may be computed by, which is no part of the global state."""
        source = Result(Constant(allowed_attention, "allowed_attention"))
        self.guard(source, GuardKind.EQUALS, self.entry_settings.attention)

    def guard_when_asked(
        self, source: Source, kind: GuardKind, expected: object, *, has_varied: bool = False
    ) -> Callable[[], None]:
        """What installs the guard when it is called, as long as the trace goes on. What is there `has_varied`, or is
        computed of what may."""

        def install() -> None:
            assert not self.values.is_over, "a constant from outside is read when the trace is over"
            if has_varied or isinstance(source, Computed):
                self.on_pin(source, expected)
            self.guard(source, kind, expected)

        return install

    def known(self, source: Source) -> VariableTracker | None:
        """The tracker of the value at `source`, if there is one already."""
        return self.values.at(source)

    def tracker_of(self, value: object) -> VariableTracker | None:
        """The tracker of a real object, if there is one already."""
        return self.values.of(value)

    def claim_namespace(self, namespace: object, owner: VariableTracker) -> bool:
        """Whether nobody else stands for the dictionary that holds the attributes of `owner`; from now on it does."""
        return self.values.claim_namespace(namespace, owner)

    def lazy(self, value: object, source: Source, *, is_there: bool = False) -> VariableTracker:
        """A value that the program has come to: its tracker if there is one; else it is unread, and must be there.

        `is_there`: other guards say so.
        """
        known = self.values.at(source)
        if known is not None:
            return known
        self.values.record_lazy(value, source)
        if not is_there:
            self.guard(source, GuardKind.PRESENT, None)
        return LazyVariable(value, source=source)

    def place_of(self, value: object) -> Source | None:
        """Where the program has come to this very object, whether it has looked at it or not."""
        return self.values.place_of(value)

    def real(self, tensor: TensorVariable) -> torch.Tensor | None:
        """The real tensor that a tracker was made from; None for one that the graph computes."""
        return self.inputs.real(tensor)

    def version_on_arrival(self, tensor: TensorVariable) -> int:
        """How often the fake tensor of one from outside counted as written when the frame began."""
        return self.inputs.version_on_arrival(tensor)

    def may_have_written(self) -> bool:
        """Whether the graph may have written to a tensor from outside so far."""
        nodes = [node.meta for node in self.graph.nodes if node.meta.get("mutates")]
        where = [memory for meta in nodes for memory in meta["written_memory"] or [None]]
        return any(memory is None or self.owner_of(memory) is not None for memory in where)

    def owner_of(self, memory: object) -> TensorVariable | None:
        """A tensor from outside that lies in this memory; None for memory that the graph makes."""
        return self._fakes.owner_of(memory)

    def writes_of(self, graph: torch.fx.GraphModule, *, may_raise: bool) -> tuple[Writes | None, Lookups | None]:
        """What the finished graph writes to outside, and which positions it looks up. `may_raise`: data may make it
        raise an error."""
        nodes = dict.fromkeys(graph.graph.nodes)
        fakes = {node: fake for node, fake in self._fakes.from_outside().items() if node in nodes}
        return find_writes(graph, fakes, may_raise=may_raise)

    def use(self, tensor: TensorVariable) -> torch.Tensor:
        """The fake tensor, whose facts are guarded from now on."""
        return self.inputs.use(tensor)

    def constant(self, tensor: TensorVariable) -> torch.Tensor | None:
        """The tensor with its values, where it was made of constants alone."""
        known = constant_behind(self.use(tensor))
        return folded(tensor.node, self._open.graphs) if known is None else known

    def is_guarded(self, tensor: TensorVariable) -> bool:
        """Whether all facts about a tensor are known to hold; of one that is not used, single ones may be read."""
        return self.inputs.is_guarded(tensor)

    def fact(self, tensor: TensorVariable, place: Source, value: Any) -> ConstantVariable:
        """One fact about a tensor, which is at `place`. It is guarded when somebody reads it, unless the tensor is."""
        if self.inputs.is_guarded(tensor):
            return ConstantVariable(anew(value))
        kind = GuardKind.EQUALS if type(value) in (int, torch.device) else GuardKind.IDENTITY
        read = self.guard_when_asked(place, kind, value)
        fact = ConstantVariable(anew(value), source=place, on_read=read, read_anew=True)
        self.inputs.note_fact(tensor, fact)
        return fact

    def forget_values(self) -> None:
        """Let go of the user's objects. The parts of a trace refer to each other and wait for the garbage collector."""
        self.values.forget()
        self.inputs.forget_values()

    # Operations

    def emit(
        self,
        target: Callable[..., Any] | str,
        args: Sequence[VariableTracker],
        kwargs: Mapping[str, VariableTracker],
    ) -> VariableTracker:
        """Run a call on fake tensors and record it as a node, unless its result is a plain constant.

        Raises NotInGraph for arguments and results that a graph cannot hold, CallFailed when the call itself raises.
        """
        if target in ATTENTION_FUNCTIONS:
            self.guard_attention()
        node_args, fake_args = self._arguments.all(args)
        node_kwargs, fake_kwargs = self._arguments.named(kwargs)
        if node_kwargs.get("generator", self) is None:  # with one, torch takes no symbolic sizes, not even with None
            del node_kwargs["generator"], fake_kwargs["generator"]
        versions = Versions((fake_args, fake_kwargs))
        self._fakes.take_draws()
        run_args = fake_args if self.subgraph is not None else at_first_places(target, fake_args)
        result = self._fakes.run(target, run_args, fake_kwargs)
        if _takes_free_numbers(node_args, node_kwargs):
            for fake in tensors_in(result):
                forget_constant(fake)
        uncounted = [*_written_lists(target, fake_args), *_updated_statistics(target, fake_args, fake_kwargs)]
        written = [*versions.written(), *tensors_in(uncounted)]
        self._note_writes(written)
        known = not has_symbols(result) or not self.takes_numbers or isinstance(result, torch.SymBool | torch.SymFloat)
        if known and not written and not _is_made_by_the_graph(result):
            return _constant_result(without_symbols(result))
        draws = self._fakes.take_draws()
        if draws and self.subgraph is not None:
            self.subgraph.draws = True
        where = tuple(map(memory_of, written))
        made = self._record(target, node_args, node_kwargs, result, mutates=bool(written), written=where, draws=draws)
        given = kwargs.get("out")
        return given if given is not None and result is fake_kwargs["out"] else made

    def _note_writes(self, written: Iterable[torch.Tensor]) -> None:
        for fake in written:
            self.held_numbers[memory_of(fake)] = _unknown
            if self.subgraph is not None and not fake.is_inference():
                self.subgraph.note_write(fake)

    def _record(
        self,
        target: Callable[..., Any] | str,
        args: Iterable[Any],
        kwargs: dict[str, Any],
        result: Any,
        *,
        name: str | None = None,
        mutates: bool = False,
        written: Sequence[object] = (),
        draws: bool = False,
    ) -> VariableTracker:
        """Put a node that gives `result` into the open graph, and track what it gives."""
        op = "call_method" if isinstance(target, str) else "call_function"
        self.time += 1
        node = self.graph.create_node(op, target, tuple(args), kwargs, name=name)
        node.meta.update(user_location=self._where(), example_value=result)
        node.meta.update(mutates=mutates, written_memory=written, draws=draws, time=self.time)
        return self._track(result, node)

    def _track(self, result: Any, node: torch.fx.Node) -> VariableTracker:
        if isinstance(result, torch.Tensor):
            if result.dtype in _QUANTIZED:  # fake ones do not compute what real ones do
                raise NotInGraph("quantized tensor")
            cls = torch.nn.Parameter if isinstance(result, torch.nn.Parameter) else torch.Tensor
            return self._fakes.tracker_of(result) or self._fakes.note(TensorVariable(node, result, cls))
        if isinstance(result, list | tuple):
            items = [self._record(operator.getitem, (node, k), {}, item) for k, item in enumerate(result)]
            return TupleVariable(items, type(result)) if isinstance(result, tuple) else ListVariable(items)
        if isinstance(result, RemovableHandle):
            return HookVariable(node)
        if isinstance(result, torch.SymInt):
            return self._number(result, int, lambda: int(result), self.shapes.place_of(result), node)
        return _constant_result(result)

    def switch(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Change a setting of torch, here and in the graph; nothing happens when it is so already."""
        before = settings()
        function(*arguments)
        if settings() != before:
            node = self.graph.call_function(function, arguments)
            node.meta["user_location"] = self._where()

    # Numbers

    @property
    def takes_numbers(self) -> bool:
        """Whether the graph that is open takes numbers that are not known, and computes with them."""
        return self._open.takes_numbers

    def integer(self, value: int, source: Source) -> NumberVariable:
        """Track an int that Python reads or computes, with a symbol of its own."""
        known = self.values.at(source)
        if isinstance(known, NumberVariable):
            return replace(known) if is_read_anew(source) else known
        symbol = self.shapes.integer(source, value)

        def pin() -> int:
            int(symbol)  # which guards it
            return value  # this very object: what Python makes of it may be the same one

        number = self._number(symbol, int, pin, source)
        self.values.place(source, number)
        return number

    def floating(self, value: float, source: Source) -> NumberVariable:
        """Track a float that Python reads or computes; `value` is that of this call."""

        def pin() -> float:
            self.guard(source, GuardKind.EQUALS, value)
            return value

        return self._number(value, float, pin, source)

    def _number(
        self, value: Any, cls: type, pin: Callable[[], Any], source: Source, node: torch.fx.Node | None = None
    ) -> NumberVariable:
        def announced() -> Any:
            self.on_pin(source, value)
            return pin()

        return NumberVariable(value, cls, announced, node, source=source)

    def number(self, value: Any, function: Callable[..., Any], operands: Sequence[VariableTracker]) -> VariableTracker:
        """Track `value`, what `function` gives for ints; a node computes it from theirs."""
        if not isinstance(value, torch.SymInt):
            return ConstantVariable(value)
        return self._record(function, self._arguments.all(operands)[0], {}, value)

    def size(self, tensor: TensorVariable, dim: int) -> VariableTracker:
        """The size of a tensor in one dimension, which is all that is guarded of a tensor that is not used."""
        size, source = tensor.fake.shape[dim], tensor.source
        if source is not None and not self.inputs.is_guarded(tensor):
            if not isinstance(size, torch.SymInt):
                return self.fact(tensor, Size(source, dim), size)
            if dim < 0:
                dim += len(tensor.fake.shape)
                self.guard(TensorFact(source, "shape"), GuardKind.LENGTH, len(tensor.fake.shape))
            self.guard(Size(source, dim), GuardKind.PRESENT, None)
            self.shapes.use_size(Size(source, dim))
        if not isinstance(size, torch.SymInt) or not self.takes_numbers:
            return ConstantVariable(anew(int(size)))
        return self._record("size", (self._arguments.node(tensor), dim), {}, size)

    # Subgraphs

    @property
    def subgraph(self) -> Subgraph | None:
        """The innermost open subgraph."""
        return self._open.subgraph

    @property
    def graph(self) -> torch.fx.Graph:
        """The graph that operations go into."""
        return self._open.graph

    def open_subgraph(
        self, inputs: Iterable[GraphValue], *, takes_numbers: bool = False, may_be_left: bool = False
    ) -> AbstractContextManager[Subgraph]:
        """Until the block ends, operations go into a graph of its own, which takes `inputs` and what else it reads."""
        return self._open.open(inputs, takes_numbers=takes_numbers, may_be_left=may_be_left)

    def close_subgraph(self, subgraph: Subgraph, outputs: Sequence[TensorVariable], name: str) -> torch.fx.Node:
        """Let the subgraph return `outputs`; gives the node that stands for it in the graph around it."""
        return self._open.close(subgraph, outputs, name)

    def module_of(self, subgraph: torch.fx.Node) -> torch.fx.GraphModule:
        """The closed subgraph that a node stands for."""
        return self._open.module(subgraph)

    def emit_on_subgraphs(
        self,
        target: Callable[..., Any],
        name: str,
        pred: TensorVariable | None,
        subgraphs: Sequence[torch.fx.Node],
        inputs: Iterable[GraphValue],
        results: Sequence[tuple[torch.Tensor, bool]],
    ) -> list[VariableTracker]:
        """Record `target(pred, *subgraphs, inputs)`, which gives a tuple; `results`: tensors like those in it, and
        whether each requires grad. Without `pred` the subgraphs come first."""
        first = () if pred is None else (self._arguments.one(pred)[0],)
        args = (*first, *subgraphs, tuple(self._arguments.all(inputs)[0]))
        fakes = tuple(self._fakes.computed(like, requires_grad) for like, requires_grad in results)
        self.held_numbers |= dict.fromkeys(self.held_numbers, _unknown)  # the subgraphs may write to any of them
        made = self._record(target, args, {}, fakes, name=name, mutates=True, draws=True)
        assert isinstance(made, TupleVariable)
        return [*made.items]

    def inner_input(self, like: TensorVariable, dim: int | None, requires_grad: bool) -> TensorVariable:
        """A tensor that the open subgraph takes: like `like`, without dimension `dim` if that is given."""
        fake = self._fakes.part(self.use(like), dim, requires_grad)
        assert self.subgraph is not None
        node = self.subgraph.placeholder(like.node.name)
        node.meta.update(example_value=fake, user_location=self._where())
        return self._fakes.note(TensorVariable(node, fake))

    def example(self, variable: GraphValue) -> Any:
        """What stands for a value where only the layout of what is computed matters: a float is that of this call."""
        return self.use(variable) if isinstance(variable, TensorVariable) else variable.value

    def infers_symbolic_floats(
        self, op: OpOverload, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
    ) -> bool:
        """Whether an operator of the program tells what it gives for floats that are not known."""
        return self._fakes.infers_symbolic_floats(op, self._arguments.all(args)[1], self._arguments.named(kwargs)[1])

    def emit_transformed(
        self, made: Transformation, name: str, subgraph: torch.fx.Node, inputs: Sequence[GraphValue]
    ) -> tuple[Any, list[VariableTracker]]:
        """Record `made` over a subgraph: what it gives for fake tensors, and the trackers of the tensors in that.

        Raises what torch does; nothing is recorded then.
        """
        fakes = [self.example(variable) for variable in inputs]
        versions = Versions(fakes)
        with keeping_thread_state(), self._fakes.mode:  # the program goes on after an error
            outcome = made.call(self._open.module(subgraph), fakes)
        if not all(fake.is_inference() for fake in versions.written()):
            raise RuntimeError("the function writes to its arguments")
        results = [(leaf, leaf.requires_grad) for leaf in leaves(outcome) if isinstance(leaf, torch.Tensor)]
        return outcome, self.emit_on_subgraphs(made.node_function(name), name, None, [subgraph], inputs, results)

    # The end

    def finish(
        self, outputs: Sequence[TensorVariable | HookVariable], changed_lists: Iterable[ListVariable]
    ) -> tuple[torch.fx.GraphModule | None, tuple[GraphInput, ...]]:
        """Close the graph: restore settings, return `outputs`, drop what is not needed, find lists that are given up.

        None instead of a graph when nothing was captured; then `outputs` must be empty.
        """
        for function, arguments in way_to(self.entry_settings, settings()):
            self.switch(function, *arguments)
        give(self.graph, outputs)
        self._write_constants()
        remove_dead_code(self.graph)
        inputs = self.inputs.finish(changed_lists, self.identity_keys.keys())
        if not any(node.op in ("call_function", "call_method") for node in self.graph.nodes):
            return None, ()
        return self._open.root_module(), inputs

    def _write_constants(self) -> None:
        """Write numbers that have turned out to be constants as what they are."""
        for node in self.graph.nodes if self.shapes.is_symbolic else ():
            number = node.meta.get("example_value")
            value = self.shapes.constant_behind(number) if isinstance(number, torch.SymInt) else None
            for user in list(node.users) if value is not None else ():
                replace = lambda arg, node=node, value=value: value if arg is node else arg  # noqa: E731
                user.args = torch.fx.map_arg(user.args, replace)
                user.kwargs = torch.fx.map_arg(user.kwargs, replace)


# Where running statistics stand among the arguments; `training` is the sixth.
_STATISTICS: dict[object, dict[str, int]] = {
    torch.nn.functional.batch_norm: {"running_mean": 1, "running_var": 2},
    torch.batch_norm: {"running_mean": 3, "running_var": 4},
    torch.native_batch_norm: {"running_mean": 3, "running_var": 4},
}


def _takes_free_numbers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a number is among the arguments of a node that may be another one in the next call."""
    values = [node.meta["example_value"] for node in nodes_in((args, kwargs))]
    return any(isinstance(value, SYMBOLIC_NUMBERS) and constant_of(value) is None for value in values)


def _written_lists(target: object, args: Sequence[Any]) -> list[Any]:
    """The arguments that are lists of tensors which the function writes to, one way or another."""
    positions = written_lists(target) if isinstance(target, types.BuiltinFunctionType) else ()
    return [args[position] for position in positions if position < len(args)]


def _updated_statistics(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """What a batch norm in training writes to; torch does not count that."""
    places = _STATISTICS.get(target)
    if places is None or not (args[5] if len(args) > 5 else kwargs.get("training", False)):
        return []
    return [args[place] if place < len(args) else kwargs.get(name) for name, place in places.items()]


def _unknown() -> None:
    """The number in a tensor that was written to."""


def _is_made_by_the_graph(result: Any) -> bool:
    """Whether a call has to be in the graph for the sake of what it gives, or of what it does: it gives nothing."""
    return result is None or isinstance(result, RemovableHandle) or any(True for _ in tensors_in(result))


def _constant_result(result: Any) -> VariableTracker:
    try:
        return from_constant(result)
    except NotConstant as error:
        raise NotInGraph(str(error)) from None
