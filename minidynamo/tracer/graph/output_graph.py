"""Owns the graph under construction: turns a call into a node, and its result into a tracker.

Operations run on fake tensors first (`fake_tensors.py`), with arguments from `arguments.py`. The inputs and the
identity of values (`inputs.py`), the open subgraphs (`open_graphs.py`), and the choice of calls to record
(`tracer/capture/trace.py`) are not here."""

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
    constant_of,
    forget_constant,
    keeping_thread_state,
    known_constant,
    memory_of,
    written_arguments,
)
from minidynamo.errors import UserLocation
from minidynamo.fake.mode import real_tensors_in_calls
from minidynamo.graph.autograd_calls import is_autograd_call
from minidynamo.graph.collectives import PendingWork
from minidynamo.graph.func_transforms import Transformation
from minidynamo.graph.marks import FROM_DATA, RAISES
from minidynamo.graph.pytree import leaves, nodes_in, tensors_in
from minidynamo.graph.torch_settings import allowed_attention, settings, switches_between
from minidynamo.graph.unbacked_symints import has_unbacked_layout, with_first_indices
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.guard_list import GuardList
from minidynamo.guards.profile import Finiteness, FrameProfile
from minidynamo.guards.shapes import Shapes
from minidynamo.guards.source import Computed, Constant, Result, Size, Source, TensorFact, is_new_each_read
from minidynamo.guards.values import ClassChecks
from minidynamo.guards.varying_items import OF_KINDS
from minidynamo.tracer.graph.arguments import Arguments, NotInGraph
from minidynamo.tracer.graph.constant_folding import folded, writes_to
from minidynamo.tracer.graph.dead_code import remove_dead_code
from minidynamo.tracer.graph.fake_tensors import CallFailed, FakeTensors, VersionCounters, has_symbols, without_symbols
from minidynamo.tracer.graph.inputs import GraphInputs, KnownValues
from minidynamo.tracer.graph.open_graphs import GraphValue, OpenGraphs, Subgraph, set_outputs
from minidynamo.tracer.graph.written_memory import Lookups, Writes, find_writes
from minidynamo.tracer.records.constants import NotConstant, from_constant
from minidynamo.tracer.records.traced_frame import GraphInput
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import ListVariable, Slots, TupleVariable
from minidynamo.variables.tensors import (
    GradFnVariable,
    ItemVariable,
    OpaqueResult,
    StorageVariable,
    TensorVariable,
)

# Returns the number in a tensor of one element; None if it is not known.
Number = Callable[[], VariableTracker | None]

_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


class OutputGraph:
    """The graph of a trace.

    `where` returns the user's line. `GraphInputs` explains `steal` and `starred`, `FrameRequest` explains `may_assert`.
    """

    def __init__(
        self,
        where: Callable[[], UserLocation | None],
        steal: frozenset[Source] = frozenset(),
        starred: frozenset[Source] = frozenset(),
        profile: FrameProfile | None = None,
        *,
        may_assert: bool = False,
    ) -> None:
        self.where = where
        self.may_assert = may_assert
        # The record of the frame point, if the graph may assert that numbers are finite.
        self.finite: Finiteness | None = None
        self.may_break = True  # whether the graph may end at a graph break
        # Called with the source of a number, and the number, before it is specialized.
        self.on_specialize: Callable[[Source, object], object] = lambda source, value: None
        # Called before a guard on a kind that differs from call to call.
        self.on_kind: Callable[[Source], object] = lambda source: None
        # Called with the contents of an external list or deque before the guard on its length.
        self.on_length: Callable[[Slots], object] = lambda items: None
        self._open = OpenGraphs()
        self._guards = GuardList(where)
        self.shapes = Shapes(FrameProfile(dynamic=False) if profile is None else profile, where)
        self._fakes = FakeTensors(self.shapes)
        self.values = KnownValues()
        self.inputs = GraphInputs(
            self._open.root, where, self.shapes, self._guards, self._fakes, self.values, steal, starred
        )
        self._arguments = Arguments(self._open, self.inputs)
        # Trackers whose identity the program used, as a key of a dict or an element of a set.
        self.identity_keys: dict[VariableTracker, None] = {}
        # Numbers in tensors with a single element, by memory (`tracer/numbers/tensor_items.py`).
        self.tensor_numbers: dict[object, Number] = {}
        # Storages that the program has read, by memory (`handlers/storages.py`).
        self.storages: dict[object, StorageVariable] = {}
        # Trackers of autograd nodes of tensors, by node (`handlers/autograd_calls.py`).
        self.grad_fns: dict[object, GradFnVariable] = {}
        # Count of writes -> (tensor with this count, version counter of the fake tensor at that time).
        self.write_counts: dict[VariableTracker, tuple[TensorVariable, int]] = {}
        self.class_checks = ClassChecks()
        # Memory of the tensors among which the graph chooses, and of the chosen tensors.
        self.chosen: set[object] = set()
        self.has_tensor_classes = False  # whether the program has used an instance of a tensor subclass
        self.has_items = False  # whether the graph computes numbers (`tracer/numbers/graph_numbers.py`)
        self.entry_settings = settings()

    @property
    def may_break_here(self) -> bool:
        """Returns whether the graph may end at or before the call that is being traced."""
        return self.may_break and self.may_run_eagerly

    @property
    def may_run_eagerly(self) -> bool:
        """Returns whether every open subgraph may run eagerly instead, after a graph break."""
        return self._open.may_run_eagerly

    # External values

    @property
    def guards(self) -> Sequence[Guard]:
        """Returns the guards so far, in the order of installation."""
        return tuple(self._guards)

    def guard(self, source: Source, kind: GuardKind, expected: object) -> None:
        """Installs a guard, once."""
        if kind in OF_KINDS and self.shapes.kind_varies(source):
            self.on_kind(source)
        self._guards.install(source, kind, expected)

    def skip_guards(self, source: Source, kinds: frozenset[GuardKind] | None = None) -> None:
        """Skips guards of these kinds (None: of all kinds) on an object that the program creates in each call, and on
        its parts: the facts that they check are the same in each call."""
        self._guards.certain[source] = kinds

    def guard_attention(self) -> None:
        """Guards the allowed implementations of attention, which are not part of the global state."""
        source = Result(Constant(allowed_attention, "allowed_attention"))
        self.guard(source, GuardKind.EQUALS, self.entry_settings.attention)

    def guard_on_read(
        self, source: Source, kind: GuardKind, expected: object, *, has_varied: bool = False
    ) -> Callable[[], None]:
        """Returns a function that installs the guard during the trace.

        `has_varied`: the value has differed between calls; a computed value may differ too."""

        def install() -> None:
            assert not self.values.has_ended, "a constant from outside is read when the trace is over"
            if has_varied or isinstance(source, Computed):
                self.on_specialize(source, expected)
            self.guard(source, kind, expected)

        return install

    def known(self, source: Source) -> VariableTracker | None:
        """Returns the tracker of the value at `source`; None if it has none yet."""
        return self.values.at(source)

    def tracker_of(self, value: object) -> VariableTracker | None:
        """Returns the tracker of a real object; None if it has none yet."""
        return self.values.of(value)

    def claim_namespace(self, namespace: object, owner: VariableTracker) -> VariableTracker:
        """Makes `owner` the owner of its attribute dictionary. Returns `owner`; if the dictionary is known already,
        returns the tracker of the dictionary or of its owner."""
        return self.values.claim_namespace(namespace, owner)

    def source_of(self, value: object) -> Source | None:
        """Returns the source of this very object, read or lazy; None if the program has not seen it."""
        return self.values.source_of(value)

    def real(self, tensor: TensorVariable) -> torch.Tensor | None:
        """Returns the real tensor of a tracker; None for a tensor that the graph computes."""
        return self.inputs.real(tensor)

    def external(self, node: torch.fx.Node) -> TensorVariable | NumberVariable | None:
        """Returns the external tensor or number whose placeholder, or item of a list's placeholder, a node is."""
        fake = node.meta.get("example_value")
        if not isinstance(fake, torch.Tensor):
            return self.inputs.number_at(node)
        tensor = self._fakes.tracker_of(fake)
        return tensor if tensor is not None and tensor.node is node and self.real(tensor) is not None else None

    def initial_version(self, tensor: TensorVariable) -> int:
        """Returns the version counter of an external tensor's fake tensor at the start of the frame."""
        return self.inputs.initial_version(tensor)

    def may_have_written(self) -> bool:
        """Returns whether the graph may have written to an external tensor so far."""
        return None in self._memories_written() or bool(self.written_tensors())

    def written_tensors(self) -> list[TensorVariable]:
        """Returns the external tensors to whose memory the graph has written so far, as far as known."""
        owners = (self.owner_of(memory) for memory in self._memories_written() if memory is not None)
        return [owner for owner in owners if owner is not None]

    def _memories_written(self) -> list[object]:
        """Returns the memories to which the graph has written so far, each once, with None for unknown memory."""
        nodes = [node.meta for node in self.graph.nodes if node.meta.get("mutates")]
        return [*dict.fromkeys(memory for meta in nodes for memory in meta["written_memory"] or [None])]

    def writes_to(self, nodes: set[torch.fx.Node]) -> bool:
        """Returns whether an open graph has written to the result of one of the nodes, through any view."""
        return any(writes_to(graph, nodes) for graph in self._open.graphs)

    def owner_of(self, memory: object) -> TensorVariable | None:
        """Returns an external tensor in this memory; None for memory that the graph allocates."""
        return self._fakes.owner_of(memory)

    def writes_of(self, graph: torch.fx.GraphModule, *, may_raise: bool) -> tuple[Writes | None, Lookups | None]:
        """Returns the writes of the finished graph to external memory, and its lookups of positions.

        `may_raise`: the graph may raise an error that depends on data."""
        nodes = dict.fromkeys(graph.graph.nodes)
        fakes = {node: fake for node, fake in self._fakes.external_tensors().items() if node in nodes}
        return find_writes(graph, fakes, may_raise=may_raise)

    def use(self, tensor: TensorVariable) -> torch.Tensor:
        """Returns the fake tensor, whose facts are guarded from now on."""
        return self.inputs.use(tensor)

    def constant(self, tensor: TensorVariable) -> torch.Tensor | None:
        """Returns the tensor with its values, if it is computed from constants alone."""
        known = known_constant(self.use(tensor))
        return folded(tensor.node, self._open.graphs) if known is None else known

    def is_guarded(self, tensor: TensorVariable) -> bool:
        """Returns whether all facts about a tensor are guarded; of an unused tensor, single facts may be read."""
        return self.inputs.is_guarded(tensor)

    def fact(self, tensor: TensorVariable, source: Source, value: Any) -> ConstantVariable:
        """Returns a fact about a tensor, found at `source`; reading it installs a guard, unless the tensor is
        guarded."""
        if self.inputs.is_guarded(tensor):
            return ConstantVariable(value)
        kind = GuardKind.EQUALS if type(value) in (int, torch.device) else GuardKind.IDENTITY
        read = self.guard_on_read(source, kind, value)
        fact = ConstantVariable(value, source=source, on_read=read)
        self.inputs.record_fact(tensor, fact)
        return fact

    def forget_values(self) -> None:
        """Drops references to the user's objects: the parts of a trace form cycles, which die late."""
        self.values.forget()
        self.inputs.forget_values()

    # Operations

    def emit(
        self,
        target: Callable[..., Any] | str,
        args: Sequence[VariableTracker],
        kwargs: Mapping[str, VariableTracker],
    ) -> VariableTracker:
        """Runs a call on fake tensors and records it as a node, unless its result is a plain constant.

        Raises NotInGraph for arguments and results that a graph cannot hold, and CallFailed if the call itself
        raises."""
        if target in ATTENTION_FUNCTIONS:
            self.guard_attention()
        node_args, fake_args = self._arguments.convert_all(args)
        node_kwargs, fake_kwargs = self._arguments.convert_named(kwargs)
        if node_kwargs.get("generator", self) is None:  # with this keyword, even None, torch takes no symbolic sizes
            del node_kwargs["generator"], fake_kwargs["generator"]
        versions = VersionCounters((fake_args, fake_kwargs))
        self._fakes.take_draws()
        run_args = fake_args if self.subgraph is not None else with_first_indices(target, fake_args)
        result = self._fakes.run(target, run_args, fake_kwargs)
        if any(map(has_unbacked_layout, tensors_in(result))):
            raise CallFailed("a size depends on the values of tensors")
        if _has_varying_numbers(node_args, node_kwargs):
            for fake in tensors_in(result):
                forget_constant(fake)
        uncounted = tensors_in(_uncounted_writes(target, fake_args, fake_kwargs))
        written = [*versions.written(), *uncounted]
        self._record_writes(written)
        is_plain = (
            not has_symbols(result) or not self.takes_numbers or isinstance(result, torch.SymBool | torch.SymFloat)
        )
        if is_plain and not written and not _needs_node(result):
            return _constant_result(without_symbols(result))
        draws = self._fakes.take_draws()
        if draws and self.subgraph is not None:
            self.subgraph.draws = True
        memories = tuple(map(memory_of, written))
        recorded = self._record(
            target, node_args, node_kwargs, result, mutates=bool(written), written_memory=memories, draws=draws
        )
        out = kwargs.get("out")
        return out if out is not None and result is fake_kwargs["out"] else recorded

    def real_tensors_in_calls(self) -> AbstractContextManager[None]:
        """Lets called Python functions read real tensors inside the block, such as parameters."""
        return real_tensors_in_calls(self._fakes.mode)

    def _record_writes(self, written: Iterable[torch.Tensor]) -> None:
        self._refuse_chosen(written := [*written])
        self.forget_numbers(map(memory_of, written))
        for fake in written:
            if self.subgraph is not None and not fake.is_inference():
                self.subgraph.record_write(fake)

    def forget_numbers(self, memories: Iterable[object]) -> None:
        """Records that the numbers in these memories are unknown from now on."""
        self.tensor_numbers |= dict.fromkeys(memories, _unknown_number)

    def _refuse_chosen(self, changed: Iterable[torch.Tensor]) -> None:
        """Raises NotInGraph for a write to an operand of `min` or `max` of tensors, or to the result."""
        if self.chosen and any(memory_of(fake) in self.chosen for fake in changed):
            raise NotInGraph("tensor that may be the result of `min` or `max`, and changes it")

    def _record(
        self,
        target: Callable[..., Any] | str,
        args: Iterable[Any],
        kwargs: dict[str, Any],
        result: Any,
        *,
        name: str | None = None,
        mutates: bool = False,
        written_memory: Sequence[object] = (),
        draws: bool = False,
    ) -> VariableTracker:
        """Adds a node with the given result to the open graph, and tracks the result."""
        op = "call_method" if isinstance(target, str) else "call_function"
        node = self.graph.create_node(op, target, tuple(args), kwargs, name=name)
        node.meta.update(user_location=self.where(), example_value=result)
        node.meta.update(mutates=mutates, written_memory=written_memory, draws=draws)
        if self.chosen and is_autograd_call(node):
            self._refuse_chosen(tensors_in([operand.meta["example_value"] for operand in node.all_input_nodes]))
        return self._track(result, node)

    def _track(self, result: Any, node: torch.fx.Node) -> VariableTracker:
        if isinstance(result, torch.Tensor):
            if result.dtype in _QUANTIZED:  # fake quantized tensors compute different results
                raise NotInGraph("quantized tensor")
            cls = torch.nn.Parameter if isinstance(result, torch.nn.Parameter) else torch.Tensor
            return self._fakes.tracker_of(result) or self._fakes.register(TensorVariable(node, result, cls))
        if isinstance(result, list | tuple):
            items = [self._record(operator.getitem, (node, k), {}, item) for k, item in enumerate(result)]
            return TupleVariable(items, type(result)) if isinstance(result, tuple) else ListVariable(items)
        if isinstance(result, RemovableHandle):
            return OpaqueResult(node, RemovableHandle)
        if isinstance(result, PendingWork):
            return OpaqueResult(node, torch.distributed.Work)
        if isinstance(result, torch.SymInt):
            return self._number(result, int, lambda: int(result), self.shapes.source_of(result), node)
        return _constant_result(result)

    def switch(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Changes a setting of torch, here and in the graph, unless it already has the new value."""
        before = settings()
        function(*arguments)
        if settings() != before:
            node = self.graph.call_function(function, arguments)
            node.meta["user_location"] = self.where()

    # Numbers

    @property
    def takes_numbers(self) -> bool:
        """Returns whether the open graph has symbolic numbers, as inputs and in operations."""
        return self._open.takes_numbers

    def integer(self, value: int, source: Source) -> NumberVariable:
        """Tracks an int that Python reads or computes, with a symbol of its own."""
        known = self.values.at(source)
        if isinstance(known, NumberVariable):
            return replace(known) if is_new_each_read(source) else known
        symbol = self.shapes.integer(source, value)

        def specialize() -> int:
            int(symbol)  # this guards the symbol
            return value  # the very object: an operation of Python may return it unchanged

        number = self._number(symbol, int, specialize, source)
        self.values.record_at(source, number)
        return number

    def floating(self, value: float, source: Source) -> NumberVariable:
        """Tracks a float that Python reads or computes; `value` is the float in this call."""

        def specialize() -> float:
            self.guard(source, GuardKind.EQUALS, value)
            return value

        return self._number(value, float, specialize, source)

    def _number(
        self, value: Any, cls: type, specialize: Callable[[], Any], source: Source, node: torch.fx.Node | None = None
    ) -> NumberVariable:
        def specialize_if_allowed() -> Any:
            self.on_specialize(source, value)
            return specialize()

        return NumberVariable(value, cls, specialize_if_allowed, node, source=source)

    def number(self, value: Any, function: Callable[..., Any], operands: Sequence[VariableTracker]) -> VariableTracker:
        """Tracks `value`, the result of `function` on ints; a node computes it from the operands."""
        if not isinstance(value, torch.SymInt):
            return ConstantVariable(value)
        return self._record(function, self._arguments.convert_all(operands)[0], {}, value)

    def item(
        self, target: Callable[..., Any] | str, args: Sequence[VariableTracker], cls: type, *, may_raise: bool = False
    ) -> ItemVariable:
        """Records a call that computes a number of class `cls` from the values of tensors."""
        return ItemVariable(self._from_data(target, args, may_raise), cls)

    def items(self, target: str, tensor: TensorVariable, cls: type, count: int) -> list[VariableTracker]:
        """Records a call that returns a list of `count` numbers of class `cls`, and reads the numbers."""
        numbers = ItemVariable(self._from_data(target, [tensor], may_raise=False), list)
        return [
            ItemVariable(self._from_data(operator.getitem, [numbers, ConstantVariable(k)], may_raise=False), cls)
            for k in range(count)
        ]

    def choice(
        self, function: Callable[..., Any], tensors: Sequence[TensorVariable], requires_grad: bool
    ) -> TensorVariable:
        """Records a call that returns one of the tensors, the object itself; their values decide which."""
        like = self.use(tensors[0])
        fake = self._fakes.result_like(like, requires_grad)
        self.chosen.update(map(memory_of, (*map(self.use, tensors), fake)))
        node = self._from_data(function, tensors, may_raise=False)
        node.meta["example_value"] = fake
        return self._fakes.register(TensorVariable(node, fake))

    def _from_data(
        self, target: Callable[..., Any] | str, args: Sequence[VariableTracker], may_raise: bool
    ) -> torch.fx.Node:
        op = "call_method" if isinstance(target, str) else "call_function"
        self.has_items = True

        def node_argument(arg: VariableTracker) -> Any:
            if isinstance(arg, TupleVariable):
                return tuple(map(node_argument, arg.items))
            return arg.node if isinstance(arg, ItemVariable) else self._arguments.convert(arg)[0]

        node = self.graph.create_node(op, target, tuple(map(node_argument, args)))
        node.meta.update(user_location=self.where(), example_value=None)
        node.meta[FROM_DATA] = RAISES if may_raise else True
        return node

    def size(self, tensor: TensorVariable, dim: int) -> VariableTracker:
        """Returns a tensor's size in a dimension; for an unused tensor, only this size is guarded."""
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
            return ConstantVariable(int(size))
        return self._record("size", (self._arguments.node(tensor), dim), {}, size)

    # Subgraphs

    @property
    def subgraph(self) -> Subgraph | None:
        """Returns the innermost open subgraph."""
        return self._open.subgraph

    @property
    def graph(self) -> torch.fx.Graph:
        """Returns the graph that records operations."""
        return self._open.graph

    def open_subgraph(
        self, inputs: Iterable[GraphValue], *, takes_numbers: bool = False, may_run_eagerly: bool = False
    ) -> AbstractContextManager[Subgraph]:
        """Records operations in a new subgraph until the block ends; its inputs are `inputs`, then any value read in
        the block."""
        return self._open.open(inputs, takes_numbers=takes_numbers, may_run_eagerly=may_run_eagerly)

    def close_subgraph(self, subgraph: Subgraph, outputs: Sequence[TensorVariable], name: str) -> torch.fx.Node:
        """Lets the subgraph return `outputs`; returns the node of the subgraph in the surrounding graph."""
        return self._open.close(subgraph, outputs, name)

    def module_of(self, subgraph: torch.fx.Node) -> torch.fx.GraphModule:
        """Returns the closed subgraph of a node."""
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
        """Records `target(pred, *subgraphs, inputs)`, which returns a tuple; without `pred`, the subgraphs come first.

        `results` has, per tensor in the tuple, an example and whether the tensor requires grad."""
        first = () if pred is None else (self._arguments.convert(pred)[0],)
        args = (*first, *subgraphs, tuple(self._arguments.convert_all(inputs)[0]))
        fakes = tuple(self._fakes.result_like(like, requires_grad) for like, requires_grad in results)
        self.forget_numbers([*self.tensor_numbers])  # the subgraphs may write to any tensor
        recorded = self._record(target, args, {}, fakes, name=name, mutates=True, draws=True)
        assert isinstance(recorded, TupleVariable)
        return [*recorded.items]

    def inner_input(self, like: TensorVariable, dim: int | None, requires_grad: bool) -> TensorVariable:
        """Returns a new input of the open subgraph: a tensor like `like`, without dimension `dim` unless None."""
        fake = self._fakes.leaf_like(self.use(like), dim, requires_grad)
        assert self.subgraph is not None
        node = self.subgraph.placeholder(like.node.name)
        node.meta.update(example_value=fake, user_location=self.where())
        return self._fakes.register(TensorVariable(node, fake))

    def example(self, variable: GraphValue) -> Any:
        """Returns an example of a value, for computing layouts: a float is the float in this call."""
        return self.use(variable) if isinstance(variable, TensorVariable) else variable.value

    def infers_symbolic_floats(
        self, op: OpOverload, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
    ) -> bool:
        """Returns whether a custom operator infers its results for symbolic floats."""
        return self._fakes.infers_symbolic_floats(
            op, self._arguments.convert_all(args)[1], self._arguments.convert_named(kwargs)[1]
        )

    def emit_transformed(
        self, transformation: Transformation, name: str, subgraph: torch.fx.Node, inputs: Sequence[GraphValue]
    ) -> tuple[Any, list[VariableTracker]]:
        """Records a transformation of a subgraph; returns its result on fake tensors, and the trackers of the result's
        tensors.

        Raises torch's error; nothing is recorded then."""
        fakes = [self.example(variable) for variable in inputs]
        versions = VersionCounters(fakes)
        with keeping_thread_state(), self._fakes.mode:  # the program continues after an error
            outcome = transformation.call(self._open.module(subgraph), fakes)
        if not all(fake.is_inference() for fake in versions.written()):
            raise RuntimeError("the function writes to its arguments")
        results = [(leaf, leaf.requires_grad) for leaf in leaves(outcome) if isinstance(leaf, torch.Tensor)]
        return outcome, self.emit_on_subgraphs(
            transformation.node_function(name), name, None, [subgraph], inputs, results
        )

    # The end

    def finish(
        self,
        outputs: Sequence[TensorVariable | OpaqueResult | ItemVariable],
        changed_lists: Iterable[ListVariable],
    ) -> tuple[torch.fx.GraphModule | None, tuple[GraphInput, ...]]:
        """Closes the graph: restores settings, returns `outputs`, removes dead code, finds the lists to empty.

        Returns None instead of a graph if nothing was captured; then `outputs` must be empty."""
        for function, arguments in switches_between(self.entry_settings, settings()):
            self.switch(function, *arguments)
        set_outputs(self.graph, outputs)
        self._write_constants()
        remove_dead_code(self.graph)
        inputs = self.inputs.finish(changed_lists, self.identity_keys.keys())
        if not any(node.op in ("call_function", "call_method") for node in self.graph.nodes):
            return None, ()
        return self._open.root_module(), inputs

    def _write_constants(self) -> None:
        """Replaces symbolic numbers that turned out to be constants."""
        for node in self.graph.nodes if self.shapes.is_symbolic else ():
            number = node.meta.get("example_value")
            value = self.shapes.known_constant(number) if isinstance(number, torch.SymInt) else None
            for user in list(node.users) if value is not None else ():
                replace = lambda arg, node=node, value=value: value if arg is node else arg  # noqa: E731
                user.args = torch.fx.map_arg(user.args, replace)
                user.kwargs = torch.fx.map_arg(user.kwargs, replace)


# Positions of the running statistics among the arguments; `training` is at position 5.
_STATISTICS: dict[object, dict[str, int]] = {
    torch.nn.functional.batch_norm: {"running_mean": 1, "running_var": 2},
    torch.batch_norm: {"running_mean": 3, "running_var": 4},
    torch.native_batch_norm: {"running_mean": 3, "running_var": 4},
}


def _has_varying_numbers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether an argument is a number that may differ in the next call."""
    values = [node.meta["example_value"] for node in nodes_in((args, kwargs))]
    return any(isinstance(value, SYMBOLIC_NUMBERS) and constant_of(value) is None for value in values)


def _uncounted_writes(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Returns the arguments that the function writes to by its schema, and the statistics that a batch norm in training
    updates; torch's version counters may not show these writes."""
    positions = _STATISTICS.get(target)
    if positions is None:
        is_from_torch = isinstance(target, types.BuiltinFunctionType | OpOverload)
        positions = written_arguments(target) if is_from_torch else {}
    elif not (args[5] if len(args) > 5 else kwargs.get("training", False)):
        return []
    return [args[position] if position < len(args) else kwargs.get(name) for name, position in positions.items()]


def _unknown_number() -> None:
    """Returns None: the number is not known."""


def _needs_node(result: Any) -> bool:
    """Returns whether the graph must contain the call, for tensors in the result, or for the effect of a call that
    returns None."""
    if result is None or any(True for _ in tensors_in(result)):
        return True
    return any(isinstance(leaf, RemovableHandle | PendingWork) for leaf in leaves(result))


def _constant_result(result: Any) -> VariableTracker:
    try:
        return from_constant(result)
    except NotConstant as error:
        raise NotInGraph(str(error)) from None
