"""Owns the graph under construction: FX nodes, fake tensors, placeholders, guards, who is who by source and identity.

It interprets nothing and decides no rule; `trace.py` tells it what to record, `finish` makes the graph module.
"""

from __future__ import annotations

import contextlib
import operator
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils.hooks import RemovableHandle

from minidynamo.compat import (
    SYMBOLIC_NUMBERS,
    FakeTensorMode,
    dispatch_keys,
    fake_tensor_log,
    python_dispatcher,
    written_lists,
)
from minidynamo.errors import UserLocation
from minidynamo.guards.guard import Guard, GuardKind, TensorFacts
from minidynamo.guards.profile import FrameProfile
from minidynamo.guards.shapes import Layout, Shapes
from minidynamo.guards.source import Constant, Item, Local, Source
from minidynamo.structure import leaves
from minidynamo.switches import settings, way_to
from minidynamo.tracer.constants import NUMPY_SCALARS, NotConstant, as_constant, from_constant
from minidynamo.tracer.dead_code import remove_dead_code
from minidynamo.tracer.protocol import Number
from minidynamo.tracer.subgraphs import GraphValue, Subgraph, memory_of
from minidynamo.tracer.traced_frame import GraphInput
from minidynamo.transforming import Transformation
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import (
    DictVariable,
    ListVariable,
    SequenceVariable,
    SliceVariable,
    TupleVariable,
)
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ObjectVariable
from minidynamo.variables.tensors import HookVariable, TensorVariable

# Kinds of guard of which one source may carry several, told apart by what is expected.
_SEVERAL_PER_SOURCE = {
    GuardKind.HAS_KEY,
    GuardKind.MISSING_KEY,
    GuardKind.MISSING_ATTR,
    GuardKind.NO_INSTANCE_ATTR,
    GuardKind.SAME_OBJECT,
    GuardKind.DISTINCT_OBJECTS,
}


_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


class CallFailed(Exception):
    """A call on fake tensors raised `__cause__`; the real call would, too, or has no fake form."""


class NotInGraph(Exception):
    """A value cannot be an argument of a graph node; the message names its class."""


class OutputGraph:
    """One trace's graph. `steal` are the places of the lists that the user gave up, `spread` of the tuple and dict that
    hold further arguments; `where` tells the user's line."""

    def __init__(
        self,
        where: Callable[[], UserLocation | None],
        steal: frozenset[Source] = frozenset(),
        spread: frozenset[Source] = frozenset(),
        profile: FrameProfile | None = None,
    ) -> None:
        self._where = where
        self.shapes = Shapes(FrameProfile(dynamic=False) if profile is None else profile, where)
        self.graph = self._root = torch.fx.Graph()
        self.subgraph: Subgraph | None = None
        self._modules: dict[str, Any] = {}
        self._open_graphs = [self._root]
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=False)
        self.by_source: dict[Source, VariableTracker] = {}
        self.by_identity: dict[int, VariableTracker] = {}
        self._namespaces: dict[int, ObjectVariable] = {}
        # What the program asked the identity of, as the key of a dict or an element of a set.
        self.keys: dict[VariableTracker, None] = {}
        # The numbers that tensors of one element hold, by their memory (`scalars.py`).
        self.held: dict[object, Number] = {}
        self._steal = steal
        self._spread = spread
        self._alive: list[object] = []
        self._guards: dict[tuple[Any, ...], Guard] = {}
        self._by_fake: dict[int, TensorVariable] = {}
        self._unguarded: dict[TensorVariable, TensorFacts] = {}
        self._real: dict[TensorVariable, torch.Tensor] = {}
        self._layouts: dict[TensorVariable, Layout] = {}
        self._number_nodes: dict[Source, torch.fx.Node] = {}
        self._placeholders: list[tuple[torch.fx.Node, TensorVariable | ListVariable | NumberVariable]] = []
        self.entry_settings = settings()

    # Guards

    @property
    def guards(self) -> Sequence[Guard]:
        """The guards so far, in the order of installation."""
        return tuple(self._guards.values())

    def guard(self, source: Source, kind: GuardKind, expected: object) -> None:
        """Install a guard, once. A constant's own identity and class cannot change and need none."""
        if isinstance(source, Constant) and kind in (GuardKind.IDENTITY, GuardKind.TYPE):
            return
        key: tuple[Any, ...] = (source, kind)
        if kind in _SEVERAL_PER_SOURCE:
            key = (*key, expected)
        elif kind is GuardKind.CLASS_ATTR:
            key = (*key, expected[0])  # type: ignore[index]
        if key not in self._guards:
            self._guards[key] = Guard(source, kind, expected, self._where())

    def use(self, tensor: TensorVariable) -> torch.Tensor:
        """The fake tensor, whose facts are guarded from now on."""
        pending = self._unguarded.pop(tensor, None)
        if pending is not None and tensor.source is not None:
            self.guard(tensor.source, GuardKind.TENSOR, pending)
            self.shapes.use(tensor.source)
        return tensor.fake

    # Identity

    def remember(self, value: object, variable: VariableTracker) -> None:
        """From now on `variable` stands for the real object `value`, which is kept alive during the trace."""
        self._alive.append(value)
        self.by_identity[id(value)] = variable
        if variable.source is not None:
            self.by_source[variable.source] = variable

    def claim_namespace(self, namespace: object, owner: ObjectVariable) -> bool:
        """Whether nobody else stands for the dictionary that holds the attributes of `owner`; from now on it does."""
        known = self._namespaces.setdefault(id(namespace), owner)
        return known is owner and id(namespace) not in self.by_identity

    def is_namespace(self, value: dict[Any, Any]) -> bool:
        """Whether a dict holds the attributes of a tracked object."""
        return id(value) in self._namespaces

    def outside(self) -> list[VariableTracker]:
        """The trackers of real objects that have an identity, in the order in which they were met."""
        return list(dict.fromkeys(v for v in self.by_identity.values() if v.source is not None))

    def real(self, tensor: TensorVariable) -> torch.Tensor | None:
        """The real tensor that a tracker was made from; None for one that the graph computes."""
        return self._real.get(tensor)

    def known(self, source: Source) -> VariableTracker | None:
        """The tracker of the value at `source`, if there is one already."""
        return self.by_source.get(source)

    def forget_values(self) -> None:
        """Let go of the user's objects. The parts of a trace refer to each other and wait for the garbage collector."""
        for table in (self._alive, self._real, self.by_identity, self.by_source, self._namespaces):
            table.clear()
        for node, _ in self._placeholders:
            node.meta.pop("source", None)

    # Inputs

    def tensor_input(self, value: torch.Tensor, source: Source) -> TensorVariable:
        """Track a real tensor as a placeholder of its own. Its facts are guarded when it is first used."""
        node = self._placeholder(source.display())
        variable = self._tensor(value, source, node)
        node.meta["source"] = source
        self._placeholders.append((node, variable))
        return variable

    def is_argument(self, source: Source) -> bool:
        """Whether a value at `source` was handed to the frame as it is, on its own or among `*args` and `**kwargs`."""
        return isinstance(source, Local) or (isinstance(source, Item) and source.of in self._spread)

    def list_input(
        self, value: list[Any], variable: ListVariable, constants: Mapping[int, VariableTracker]
    ) -> list[VariableTracker]:
        """Track a real list of tensors and constants as one placeholder, and each tensor in it as an item of that.

        Gives the trackers of the items; those of the constants are given, by position.
        """
        source = variable.source
        assert source is not None
        node = self._placeholder(source.display())
        node.meta["source"] = source
        self._placeholders.append((node, variable))
        items: list[VariableTracker] = []
        for position, item in enumerate(value):
            known = constants.get(position) or self.by_identity.get(id(item))
            if known is None:
                getitem = self._root.call_function(operator.getitem, (node, position))
                getitem.meta["user_location"] = self._where()
                known = self._tensor(item, Item(source, position), getitem)
            items.append(known)
        node.meta["example_value"] = [v.fake if isinstance(v, TensorVariable) else c for v, c in zip(items, value)]
        return items

    def _placeholder(self, display: str) -> torch.fx.Node:
        name = re.sub(r"\W+", "_", display).strip("_") or "input"
        name = name if not name[0].isdigit() else f"input_{name}"
        taken = {node.target for node, _ in self._placeholders}
        unused = (name, *(f"{name}_{count}" for count in range(1, len(taken) + 1)))
        last = self._placeholders[-1][0] if self._placeholders else None
        with self._root.inserting_after(last):
            node = self._root.placeholder(next(name for name in unused if name not in taken))
        node.meta["user_location"] = self._where()
        return node

    def _tensor(self, value: torch.Tensor, source: Source, node: torch.fx.Node) -> TensorVariable:
        layout = self._layout(value, source)
        fake = self._fake(value, layout)
        variable = TensorVariable(node, fake, type(value), source=source)
        node.meta["example_value"] = fake
        self._by_fake[id(fake)] = variable
        self._unguarded[variable] = tensor_facts(value, layout)
        self._real[variable] = value
        self._layouts[variable] = layout
        self.remember(value, variable)
        return variable

    def _layout(self, value: torch.Tensor, source: Source) -> Layout:
        layout = self.shapes.layout(source, value)
        self._note_symbols()
        return layout

    def _note_symbols(self) -> None:
        """From the first symbol on, fake tensors know of symbols."""
        if self.shapes.is_symbolic and self.fake_mode.shape_env is None:
            self.fake_mode.shape_env = self.shapes.env
            self.fake_mode.static_shapes = False

    def _fake(self, value: torch.Tensor, layout: Layout) -> torch.Tensor:
        """A fake tensor with the facts that guards check, and no others: not its views, not its gradient."""
        with self.fake_mode, _inference_mode(value.is_inference()):
            fake = torch.empty_strided(*layout, dtype=value.dtype, device=value.device)
            if isinstance(value, torch.nn.Parameter):
                return torch.nn.Parameter(fake, value.requires_grad)
            overlaps = any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride()))
            if value.requires_grad and (value.is_leaf or overlaps):
                fake.requires_grad_()
            elif value.requires_grad:
                _give_history(fake)
        return fake

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
        node_args, fake_args = self._convert(args)
        converted = {name: self._argument(value) for name, value in kwargs.items()}
        fake_kwargs = {name: pair[1] for name, pair in converted.items()}
        versions = [(fake, _version(fake)) for fake in _tensors((fake_args, fake_kwargs))]
        result = self._run(target, fake_args, fake_kwargs)
        changed = [fake for fake, version in versions if version is None or _version(fake) != version]
        changed += _tensors([fake_args[i] for i in _written_lists(target) if i < len(fake_args)])
        for fake in changed:
            self.held[memory_of(fake)] = _unknown
            if self.subgraph is not None and not fake.is_inference():
                self.subgraph.note_write(fake)
        mutates = bool(changed)
        exists_later = isinstance(result, RemovableHandle) or any(True for _ in _tensors(result))
        if not mutates and result is not None and not exists_later:
            if not _has_symbols(result):
                return _constant_result(result)
            if not self.takes_numbers or isinstance(result, torch.SymBool | torch.SymFloat):
                return _constant_result(_pinned(result))
        node_kwargs = {name: pair[0] for name, pair in converted.items()}
        if isinstance(target, str):
            node = self.graph.call_method(target, tuple(node_args), node_kwargs)
        else:
            node = self.graph.call_function(target, tuple(node_args), node_kwargs)
        node.meta["user_location"] = self._where()
        node.meta["mutates"] = mutates
        node.meta["example_value"] = result
        tracked = self._track(result, node)
        given = kwargs.get("out")
        return given if given is not None and result is fake_kwargs["out"] else tracked

    def _run(self, target: Callable[..., Any] | str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        logged, fake_tensor_log.disabled = fake_tensor_log.disabled, True
        try:
            with self.fake_mode, python_dispatcher() if self.shapes.is_symbolic else contextlib.nullcontext():
                if isinstance(target, str):
                    return getattr(args[0], target)(*args[1:], **kwargs)
                return target(*args, **kwargs)
        except Exception as error:
            raise CallFailed(str(error)) from error
        finally:
            fake_tensor_log.disabled = logged

    def switch(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Change a setting of torch, here and in the graph; nothing happens when it is so already."""
        before = settings()
        function(*arguments)
        if settings() != before:
            node = self.graph.call_function(function, arguments)
            node.meta["user_location"] = self._where()

    def _track(self, result: Any, node: torch.fx.Node) -> VariableTracker:
        if isinstance(result, torch.Tensor):
            if result.dtype in _QUANTIZED:  # fake ones do not compute what real ones do
                raise NotInGraph("quantized tensor")
            known = self._by_fake.get(id(result))
            if known is None:
                cls = torch.nn.Parameter if isinstance(result, torch.nn.Parameter) else torch.Tensor
                known = TensorVariable(node, result, cls)
                self._by_fake[id(result)] = known
            return known
        if isinstance(result, list | tuple):
            items = []
            for position, item in enumerate(result):
                part = self.graph.call_function(operator.getitem, (node, position))
                part.meta["user_location"] = self._where()
                part.meta["example_value"] = item
                items.append(self._track(item, part))
            return TupleVariable(items, type(result)) if isinstance(result, tuple) else ListVariable(items)
        if isinstance(result, RemovableHandle):
            return HookVariable(node)
        return self._number(result, node) if isinstance(result, torch.SymInt) else _constant_result(result)

    # Numbers

    def number_input(self, value: int | float, source: Source) -> NumberVariable:
        """Track the number at a source as one that may be any."""
        self.guard(source, GuardKind.TYPE, type(value))
        return self.integer(value, source) if isinstance(value, int) else self.computed(value, source)

    def integer(self, value: int, source: Source) -> NumberVariable:
        """Track an int that Python reads or computes, with a symbol of its own."""
        symbol = self.shapes.integer(source, value)
        self._note_symbols()
        return NumberVariable(symbol, int, lambda: int(symbol), source=source)

    def computed(self, value: float, source: Source) -> NumberVariable:
        """Track a float that Python reads or computes; `value` is that of this call."""

        def pin() -> float:
            self.guard(source, GuardKind.EQUALS, value)
            return value

        return NumberVariable(value, float, pin, source=source)

    def number(self, value: Any, function: Callable[..., Any], operands: Sequence[VariableTracker]) -> VariableTracker:
        """Track `value`, what `function` gives for ints; a node computes it from theirs."""
        if not isinstance(value, torch.SymInt):
            return ConstantVariable(value)
        node = self.graph.call_function(function, tuple(self._argument(operand)[0] for operand in operands))
        node.meta.update(user_location=self._where(), example_value=value)
        return self._number(value, node)

    def size(self, tensor: TensorVariable, dim: int) -> VariableTracker:
        """The size of a tensor in one dimension."""
        size = self.use(tensor).shape[dim]
        if not isinstance(size, torch.SymInt) or not self.takes_numbers:
            return ConstantVariable(int(size))
        node = self.graph.call_method("size", (self._argument(tensor)[0], dim))
        node.meta.update(user_location=self._where(), example_value=size)
        return self._number(size, node)

    def _number(self, value: torch.SymInt, node: torch.fx.Node) -> VariableTracker:
        return NumberVariable(value, int, lambda: int(value), node, source=self.shapes.place_of(value))

    def _number_node(self, variable: NumberVariable) -> torch.fx.Node:
        """What computes a number in the graph: an input, unless it is computed there."""
        if variable.node is not None and variable.node.graph in self._open_graphs:
            return variable.node
        source = variable.source
        assert source is not None
        node = self._number_nodes.get(source)
        if node is None:
            node = self._number_nodes[source] = self._placeholder(source.display())
            is_int = isinstance(variable.value, torch.SymInt)
            example = variable.value if is_int else self.shapes.float(source, variable.value)
            self._note_symbols()
            node.meta.update(source=source, example_value=example)
            self._placeholders.append((node, variable))
        variable.node = node
        return node

    def _convert(self, variables: Iterable[VariableTracker]) -> tuple[list[Any], list[Any]]:
        pairs = [self._argument(variable) for variable in variables]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def _argument(self, variable: VariableTracker) -> tuple[Any, Any]:
        """What stands for a tracker in a node's arguments, and in a call on fake tensors."""
        if isinstance(variable, TensorVariable):
            if variable.node.graph not in self._open_graphs:
                raise NotInGraph("tensor that a branch of cond has computed")
            node = variable.node if self.subgraph is None else self.subgraph.node_of(variable)
            return node, self.use(variable)
        if isinstance(variable, ConstantVariable):
            if type(variable.value) in NUMPY_SCALARS:
                raise NotInGraph(type(variable.value).__name__)
            return variable.value, variable.value
        if isinstance(variable, NumberVariable):
            if not self.takes_numbers:
                return variable.pin(), variable.pin()
            node = self._number_node(variable)
            if self.subgraph is not None:
                node = self.subgraph.node_of(variable)
            return node, node.meta["example_value"]
        if isinstance(variable, ObjectVariable) and variable.storage is not None:
            return self._argument(variable.storage)  # torch looks at the container below
        if isinstance(variable, SequenceVariable):
            nodes, fakes = self._convert(variable.items)
            if variable.cls in (list, tuple, torch.Size):
                cls = list if variable.cls is list else tuple
                return cls(nodes), cls(fakes)
        if isinstance(variable, DictVariable) and variable.cls is dict:
            keys = [as_constant(key.variable) for key in variable.items]
            nodes, fakes = self._convert(variable.items.values())
            return dict(zip(keys, nodes)), dict(zip(keys, fakes))
        if isinstance(variable, SliceVariable):
            nodes, fakes = self._convert((variable.start, variable.stop, variable.step))
            return slice(*nodes), slice(*fakes)
        try:
            value = as_constant(variable)
        except NotConstant:
            raise NotInGraph(variable.python_type.__name__) from None
        return value, value

    # Subgraphs

    @property
    def takes_numbers(self) -> bool:
        """Whether the graph that is open takes numbers that are not known, and computes with them."""
        return self.subgraph is None or self.subgraph.takes_numbers

    @contextlib.contextmanager
    def open_subgraph(self, inputs: Iterable[GraphValue], *, takes_numbers: bool = False) -> Iterator[Subgraph]:
        """Until the block ends, operations go into a graph of its own, which takes `inputs` and what else it reads."""
        outer, outer_graph = self.subgraph, self.graph
        self.subgraph = made = Subgraph(takes_numbers and self.takes_numbers)
        self.graph = made.graph
        self._open_graphs.append(made.graph)
        made.take(inputs)
        try:
            yield made
        finally:
            self._open_graphs.remove(made.graph)
            self.subgraph, self.graph = outer, outer_graph

    def close_subgraph(self, subgraph: Subgraph, outputs: Sequence[TensorVariable], name: str) -> torch.fx.Node:
        """Let the subgraph return `outputs`; gives the node that stands for it in the graph around it."""
        graph = subgraph.graph
        output = graph.output(tuple(variable.node for variable in outputs))
        output.meta["example_value"] = tuple(variable.fake for variable in outputs)
        remove_dead_code(graph)
        number = len(self._modules) // 2
        while f"{name}_{number}" in self._modules:
            number += 1
        name = f"{name}_{number}"
        self._modules[name] = torch.fx.GraphModule(self._modules, graph)
        return self.graph.create_node("get_attr", name, name=name)

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
        first = () if pred is None else (self._argument(pred)[0],)
        args = (*first, *subgraphs, tuple(self._argument(variable)[0] for variable in inputs))
        node = self.graph.create_node("call_function", target, args, name=name)
        fakes = tuple(self._computed(like, requires_grad) for like, requires_grad in results)
        node.meta.update(user_location=self._where(), mutates=True, example_value=fakes)
        self.held |= dict.fromkeys(self.held, _unknown)  # the subgraphs may write to any of them
        tracked = self._track(fakes, node)
        assert isinstance(tracked, TupleVariable)
        return tracked.items

    def inner_input(self, like: TensorVariable, dim: int | None, requires_grad: bool) -> TensorVariable:
        """A tensor that the open subgraph takes: like `like`, without dimension `dim` if that is given."""
        assert self.subgraph is not None
        with self.fake_mode:
            outer = self.use(like).detach()
            fake = torch.empty_strided(outer.shape, outer.stride(), dtype=outer.dtype, device=outer.device)
            fake = fake if dim is None else fake.select(dim, 0)
            if requires_grad and (fake.is_floating_point() or fake.is_complex()):
                fake.requires_grad_()
        node = self.subgraph.graph.placeholder(like.node.name)
        node.meta.update(example_value=fake, user_location=self._where())
        variable = TensorVariable(node, fake)
        self._by_fake[id(fake)] = variable
        return variable

    def emit_transformed(
        self, made: Transformation, name: str, subgraph: torch.fx.Node, inputs: Sequence[TensorVariable]
    ) -> tuple[Any, list[VariableTracker]]:
        """Record `made` over a subgraph: what it gives for fake tensors, and the trackers of the tensors in that.

        Raises what torch does; nothing is recorded then.
        """
        fakes = [self.use(variable) for variable in inputs]
        versions = [_version(fake) for fake in fakes]
        with self.fake_mode:
            outcome = made.call(self._modules[str(subgraph.target)], fakes)
        if versions != [_version(fake) for fake in fakes]:
            raise RuntimeError("the function writes to its arguments")
        results = [(leaf, leaf.requires_grad) for leaf in leaves(outcome) if isinstance(leaf, torch.Tensor)]
        return outcome, self.emit_on_subgraphs(made.node_function(name), name, None, [subgraph], inputs, results)

    def _computed(self, like: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        with self.fake_mode:
            fake = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
            if requires_grad:
                _give_history(fake)
        return fake

    # The end

    def finish(
        self, outputs: Sequence[TensorVariable | HookVariable], changed_lists: Iterable[ListVariable]
    ) -> tuple[torch.fx.GraphModule | None, tuple[GraphInput, ...]]:
        """Close the graph: restore settings, return `outputs`, drop what is not needed, find lists that are given up.

        None instead of a graph when nothing was captured; then `outputs` must be empty.
        """
        for function, arguments in way_to(self.entry_settings, settings()):
            self.switch(function, *arguments)
        output = self.graph.output(tuple(variable.node for variable in outputs))
        output.meta["example_value"] = tuple(variable.fake for variable in outputs)
        self._write_constants()
        remove_dead_code(self.graph)
        inputs = self._inputs({v for v in changed_lists if _lost_elements(v)})
        self._guard_distinct(inputs)
        if not any(node.op in ("call_function", "call_method") for node in self.graph.nodes):
            return None, ()
        return torch.fx.GraphModule(self._modules, self.graph), inputs

    def _write_constants(self) -> None:
        """Write numbers that have turned out to be constants as what they are."""
        for node in self.graph.nodes if self.shapes.is_symbolic else ():
            number = node.meta.get("example_value")
            value = self.shapes.constant_behind(number) if isinstance(number, torch.SymInt) else None
            for user in list(node.users) if value is not None else ():
                replace = lambda arg, node=node, value=value: value if arg is node else arg  # noqa: E731
                user.args = torch.fx.map_arg(user.args, replace)
                user.kwargs = torch.fx.map_arg(user.kwargs, replace)

    def _inputs(self, emptied: set[ListVariable]) -> tuple[GraphInput, ...]:
        inputs = []
        for node, variable in self._placeholders:
            if not node.users:
                self.graph.erase_node(node)
                continue
            self._restore_example(node, variable)
            source = node.meta.pop("source")  # it may lead to values of the user's, and graphs are cycles
            given_up = isinstance(variable, ListVariable) and (source in self._steal or variable in emptied)
            if given_up:
                node.meta["steal_arg"] = True
            inputs.append(GraphInput(node, source, variable, given_up))
        return tuple(inputs)

    def _restore_example(self, node: torch.fx.Node, variable: VariableTracker) -> None:
        """An example shows an input as it arrives; the fake one may have been given another shape or history since."""
        examples = node.meta["example_value"]
        if isinstance(variable, TensorVariable):
            node.meta["example_value"] = self._as_it_arrived(examples)
        elif isinstance(variable, ListVariable):
            node.meta["example_value"] = [self._as_it_arrived(example) for example in examples]

    def _as_it_arrived(self, example: Any) -> Any:
        variable = self._by_fake.get(id(example))
        real = None if variable is None else self._real.get(variable)
        if variable is None or real is None:
            return example
        layout = self._layouts[variable]
        same = _same_numbers((*example.shape, *example.stride()), (*layout[0], *layout[1]))
        same = same and (example.dtype, example.requires_grad) == (real.dtype, real.requires_grad)
        return example if same else self._fake(real, layout)

    def _guard_distinct(self, inputs: Sequence[GraphInput]) -> None:
        """A graph may assume that its tensors are different objects: writing to one must not change another.

        So do tables in which they are keys.
        """
        tensors: dict[VariableTracker, None] = {}
        for graph_input in inputs:
            variable = graph_input.variable
            items = variable.original or () if isinstance(variable, ListVariable) else (variable,)
            used = (v for v in items if isinstance(v, TensorVariable) and v.node.graph is self.graph and v.node.users)
            tensors |= dict.fromkeys(used)
        for group in (tensors, {} if self.keys.keys() <= tensors.keys() else self.keys):
            sources = [v.source for v in group if v.source is not None]
            if len(sources) > 1:
                self.guard(sources[0], GuardKind.DISTINCT_OBJECTS, tuple(sources[1:]))


def _written_lists(target: object) -> tuple[int, ...]:
    return written_lists(target) if isinstance(target, types.BuiltinFunctionType) else ()


def _unknown() -> None:
    """The number in a tensor that was written to."""


def _inference_mode(enabled: bool) -> contextlib.AbstractContextManager[object]:
    """A tensor is an inference tensor if inference mode was on when it was made."""
    if enabled == torch.is_inference_mode_enabled():
        return contextlib.nullcontext()
    return torch.inference_mode(enabled)


def tensor_facts(value: torch.Tensor, layout: Layout | None = None) -> TensorFacts:
    """What a graph takes for granted about a real tensor."""
    layout = layout or (tuple(value.shape), tuple(value.stride()))
    sizes, strides = (tuple(None if isinstance(n, torch.SymInt) else n for n in part) for part in layout)
    return TensorFacts(
        type(value),
        value.dtype,
        value.device,
        sizes,
        strides,
        value.requires_grad,
        dispatch_keys(value),
    )


def _give_history(fake: torch.Tensor) -> None:
    """Let a fake tensor be one that autograd computed, so that it may be written to."""
    with torch.enable_grad():
        fake.mul_(torch.ones((), dtype=fake.dtype, device=fake.device, requires_grad=True))


def _version(fake: torch.Tensor) -> int | None:
    """How often the tensor was written to; None when that is not counted."""
    return None if fake.is_inference() else fake._version


def _lost_elements(variable: ListVariable) -> bool:
    present = set(variable.items)
    return any(item not in present for item in variable.original or () if isinstance(item, TensorVariable))


def _constant_result(result: Any) -> VariableTracker:
    try:
        return from_constant(result)
    except NotConstant as error:
        raise NotInGraph(str(error)) from None


def _same_numbers(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two lists of sizes are the same numbers or expressions; nothing is guarded."""
    plain = [[n.node.expr if isinstance(n, torch.SymInt) else n for n in numbers] for numbers in (left, right)]
    return plain[0] == plain[1]


def _has_symbols(result: Any) -> bool:
    if isinstance(result, list | tuple):
        return any(_has_symbols(item) for item in result)
    return isinstance(result, SYMBOLIC_NUMBERS)


def _pinned(result: Any) -> Any:
    """A result with each symbol as the number that it is, which is guarded."""
    if isinstance(result, list | tuple):
        return type(result)([_pinned(item) for item in result])
    kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return kinds[type(result)](result) if type(result) in kinds else result


def _tensors(tree: Any) -> Iterable[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))
    elif isinstance(tree, slice):
        yield from _tensors([tree.start, tree.stop, tree.step])
