"""Owns the walk over an ATen graph that builds the loop program.

For each node the walk chooses between a lowering and an extern call, and decides which values must exist as real
tensors. No fusion here: each lowered operation gets buffers of its own.
"""

from __future__ import annotations

import keyword
import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.codegen.ir.index import as_index, flatten
from minidynamo.codegen.ir.loops import (
    Buffer,
    Compute,
    Extern,
    GetItem,
    LoopProgram,
    Loops,
    Name,
    Origin,
    Origins,
    Write,
    names_in,
)
from minidynamo.codegen.ir.size import Extent, Size, hint, known_at_least
from minidynamo.codegen.ir.text import DTYPES
from minidynamo.codegen.lowering import registry
from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.dtypes import is_left_to_torch, is_uncertain
from minidynamo.codegen.lowering.duplicates import repeated_calls
from minidynamo.codegen.lowering.formula import NotLowered, V
from minidynamo.codegen.lowering.numbers import Numbers
from minidynamo.codegen.lowering.registry import Value, dimensions
from minidynamo.codegen.lowering.views import RESTRIDE, RESTRIDING
from minidynamo.compat import SYMBOLIC_NUMBERS, OpOverload, runtime_target
from minidynamo.errors import Diagnostic, InternalError
from minidynamo.graph.marks import IN_PLACE, PART_OF
from minidynamo.graph.pytree import as_sequence
from minidynamo.graph.rng_replay import FUNCTIONS

_COPY = torch.ops.aten.copy_.default


def lower_graph(gm: fx.GraphModule, *, target: str = "cpp", uncut: Collection[str] = ()) -> LoopProgram:
    """Lowers a functional ATen graph with fake tensors in `meta["val"]` to a loop program.

    `target` is the language of the kernels: "cpp", "triton", or "aten" for no kernels, where every node becomes an
    extern call. Calls in `uncut` become extern calls if they fold long rows to few results: uncut kernels for them
    would keep few processors busy.
    """
    return GraphLowering(gm, target, uncut).run()


def _kernel_devices(gm: fx.GraphModule, target: str) -> frozenset[str]:
    """Returns the device types on which the kernels of a program run.

    Triton kernels run on a CPU only if no tensor is on a GPU, under Triton's interpreter.
    """
    if target != "triton":
        return frozenset({"cpu"} if target == "cpp" else ())
    return frozenset({"cuda"} if any(device.type == "cuda" for device in devices_of(gm)) else {"cpu"})


def devices_of(gm: fx.GraphModule) -> Iterator[torch.device]:
    """Yields the devices of all tensors of a graph."""
    for node in gm.graph.nodes:
        for value in as_sequence(node.meta.get("val")):
            if isinstance(value, torch.Tensor):
                yield value.device


def layout_of(name: str, fake: Any, numbers: Numbers) -> Buffer | None:
    """Returns the buffer for a strided tensor of a supported dtype.

    Returns None for all other values, for lazily negated tensors, and for tensors with sizes that only torch can
    compute.
    """
    if not isinstance(fake, torch.Tensor) or fake.layout != torch.strided or fake.dtype not in DTYPES or fake.is_neg():
        return None
    shape, stride = numbers.extents(fake.shape), numbers.extents(fake.stride())
    if shape is None or stride is None:
        return None
    return Buffer(name, shape, stride, fake.dtype, fake.device)


def has_no_overlap(buffer: Buffer) -> bool:
    """Returns whether no two elements share memory, so that a kernel may write all elements."""
    span: Extent = 1
    for size, stride in sorted(zip(buffer.shape, buffer.stride), key=lambda p: (hint(p[1]), hint(p[0]))):
        if size not in (0, 1):
            if not known_at_least(stride - span, 0):
                return False
            span = span + (size - 1) * stride
    return True


class GraphLowering:
    """Lowers a graph in one walk."""

    def __init__(self, gm: fx.GraphModule, target: str, uncut: Collection[str]) -> None:
        self.gm = gm
        self.target = target
        self.kernel_devices = _kernel_devices(gm, target)
        self.builder = Builder()
        self.builder.target = target
        self.builder.uncut = uncut
        # Node -> its loop form.
        self.values: dict[fx.Node, Value | tuple[Value | None, ...]] = {}
        self.numbers = Numbers()
        # Node -> its number, as an expression for kernels.
        self.known: dict[fx.Node, Extent | V | float] = {}
        # Number inputs, and the numbers of the prelude.
        self.prelude_names: set[str] = set()
        # Node -> host name of its tensor or number, if the host program has one.
        self.host_names: dict[fx.Node, str] = {}
        self.uncertain: set[fx.Node] = set()  # results of torch whose fake tensors may have the wrong dtype
        self.inputs: list[str] = []
        self.constants: dict[str, Any] = {}
        self.names: set[str] = set()
        self.mutated: set[str] = set()
        self.writes: list[Write] = []
        self.calls = 0  # the ATen calls so far, without views
        # `copy_` node -> new value of its input, for inputs written since the last extern call.
        self.stored: dict[fx.Node, Value] = {}
        self.last_writes = {n.args[0]: n for n in gm.graph.find_nodes(op="call_function", target=_COPY)}
        self.positions = {node: k for k, node in enumerate(gm.graph.nodes)}
        # Identity of a fake tensor -> its layout, without a name. Each reader of a value needs the layout.
        self.layouts: dict[int, Buffer] = {}
        # Call -> an earlier call with the same result.
        self.repeated: dict[fx.Node, fx.Node] = {}

    def run(self) -> LoopProgram:
        """Lowers all nodes."""
        outputs: tuple[Any, ...] = ()
        placeholders = {n: self._name(n) for n in self.gm.graph.nodes if n.op == "placeholder"}
        self.numbers.bind_inputs(((name, n.meta.get("val")) for n, name in placeholders.items()), self._free_name)
        if self.kernel_devices:
            self.repeated = repeated_calls(self.gm, lambda node: self._layout("", node.meta.get("val")))
        for node in self.gm.graph.nodes:
            match node.op:
                case "placeholder":
                    self.inputs.append(self._define(node, placeholders[node]))
                    if isinstance(node.meta.get("val"), SYMBOLIC_NUMBERS):
                        self._record_number(node, placeholders[node])
                case "get_attr":
                    self.constants[self._define(node)] = operator.attrgetter(node.target)(self.gm)
                case "output":
                    outputs = self._constants_and_names(as_sequence(node.args[0]), output=True)
                case "call_function":
                    self._call(node)
                case _:
                    what = f"an ATen graph has no {node.op} nodes ({node.target})"
                    raise InternalError(Diagnostic("MD510", what, why="Only functions are called in such a graph."))
        builder = self.builder
        inputs, numbers = tuple(self.inputs), frozenset(self.prelude_names.intersection(self.inputs))
        nodes, prelude, writes = tuple(builder.nodes), (*self.numbers.prelude, *builder.prelude), tuple(self.writes)
        facts = (builder.buffers, self.constants, numbers, prelude, writes, self.target)
        return LoopProgram(inputs, nodes, outputs, *facts)

    # Names

    def _name(self, node: fx.Node) -> str:
        return self._free_name(
            node.name if node.name.isidentifier() and not keyword.iskeyword(node.name) else f"v_{node.name}"
        )

    def _free_name(self, name: str) -> str:
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name

    def _define(self, node: fx.Node, name: str | None = None) -> str:
        """Defines a real tensor (or other Python value) under a name of its own; returns the name."""
        name = name or self._name(node)
        self.host_names[node] = name
        if is_uncertain(node, self.uncertain):
            self.uncertain.add(node)
        layout = None if node in self.uncertain else self._layout(name, node.meta.get("val"))
        if layout is not None:
            self.builder.buffers[name] = layout
            self.values[node] = Value.whole(layout)
        return name

    def _layout(self, name: str, fake: Any) -> Buffer | None:
        layout = self.layouts.get(id(fake))
        if layout is None:
            layout = layout_of("", fake, self.numbers)
            if layout is None:
                return None
            self.layouts[id(fake)] = layout
        return Buffer(name, layout.shape, layout.stride, layout.dtype, layout.device)

    def _origins(self, node: fx.Node) -> Origins:
        """Returns the origins of the values computed for `node`."""
        target = node.target
        op = target.overloadpacket.__name__ if isinstance(target, OpOverload) else getattr(target, "__name__", "call")
        return (Origin(self.positions[node], str(op).strip("_"), node.meta.get("user_location")),)

    # Numbers

    def _record_number(self, node: fx.Node, name: str) -> None:
        """Records a number that exists before the first step."""
        self.prelude_names.add(name)
        value = self.numbers.value(name, node.meta["val"])
        if value is not None:
            self.known[node] = value

    def _number(self, node: fx.Node) -> None:
        """Lowers a node whose result is a Python number.

        A size becomes an expression. Any other number becomes a step of the host program, in the prelude if it depends
        on numbers only.
        """
        size = self.numbers.extent(node.meta["val"])
        if size is not None:
            self.known[node] = size
            return
        args = self._constants_and_names(node.args)
        if node.kwargs or not all(name in self.prelude_names for name in names_in(args)):
            self._extern(node)
            return
        name = self._name(node)
        self.numbers.prelude.append(Compute(name, node.target, args))
        self.host_names[node] = name
        if isinstance(node.meta["val"], torch.SymFloat):
            self.numbers.floats.add(name)
        self._record_number(node, name)

    # Calls

    def _call(self, node: fx.Node) -> None:
        if isinstance(node.meta.get("val"), SYMBOLIC_NUMBERS):
            self._number(node)
            return
        if node.target is operator.getitem and self._lower_getitem(node):
            return
        if self._store_into_input(node):
            return
        # An unused node is in the graph because it may raise an error, which ATen raises.
        kernel = bool(node.users) and self._is_supported(node)
        if kernel and self.repeated.get(node) in self.values:
            self.values[node] = self.values[self.repeated[node]]
            self.host_names[node] = self.host_names[self.repeated[node]]
            return
        lowering = registry.find(node.target) if kernel else None
        if lowering is None or not self._lower(node, lowering):
            self._extern(node)

    def _lower_getitem(self, node: fx.Node) -> bool:
        """Lowers `getitem` on a lowered operation with several results; returns whether it did."""
        source, k = node.args
        values = self.values.get(source) if isinstance(source, fx.Node) else None
        if not isinstance(values, tuple) or not isinstance(k, int):
            return False
        value = values[k]
        if value is None:
            return True
        self.values[node] = value
        if isinstance(source, fx.Node) and not registry.is_view(source.target):
            self.host_names[node] = value.buffer.name
        return True

    def _is_supported(self, node: fx.Node) -> bool:
        """Returns whether kernels can read and write all tensors of the call, on one device, with no complex
        numbers."""
        if any(isinstance(argument, complex) for argument in (*node.args, *node.kwargs.values())):
            return False
        if is_left_to_torch(node) or any(n not in self.values and n not in self.known for n in node.all_input_nodes):
            return False
        tensors = [n.meta.get("val") for n in node.all_input_nodes if n not in self.known]
        results = as_sequence(node.meta.get("val"))
        tensors += [t for t in results if t is not None]
        if any(self._layout("", t) is None for t in tensors) or not results:
            return False
        devices = {t.device for t in tensors if isinstance(t, torch.Tensor)}
        return len(devices) == 1 and next(iter(devices)).type in self.kernel_devices

    def _lower(self, node: fx.Node, lowering: registry.Lowering) -> bool:
        builder = self.builder
        first_node, buffers_before, checks = len(builder.nodes), len(builder.buffers), len(builder.prelude)
        fakes = as_sequence(node.meta["val"])
        name = self._name(node)
        builder.prefix = name
        builder.results = tuple(self._layout(name, f) for f in fakes)
        builder.device = builder.out.device
        builder.origins = self._origins(node)
        call = node.meta.get(PART_OF)
        builder.decomposed_from = None if call is None else call.operation
        args = fx.map_arg(node.args, self._value)
        kwargs = fx.map_arg(node.kwargs, self._value)
        try:
            result = lowering(builder, *args, **kwargs)
            if not registry.is_view(node.target):
                result = self._adopted(node, name, result, fakes, first_node)
        except NotLowered:
            del builder.nodes[first_node:], builder.prelude[checks:]
            for added in [*builder.buffers][buffers_before:]:
                del builder.buffers[added]
            self.names.discard(name)
            return False
        self.values[node] = result
        if registry.is_view(node.target):
            self.names.discard(name)
        elif isinstance(result, Value):
            self.host_names[node] = name
        return True

    def _adopted(
        self, node: fx.Node, name: str, result: Value | tuple[Value | None, ...], fakes: Sequence[Any], start: int
    ) -> Value | tuple[Value | None, ...]:
        """Returns the results of a lowering in the layouts of eager."""
        if isinstance(result, Value):
            return self._adopt(node, name, result, fakes[0], start)
        return tuple(
            None if r is None else self._adopt(node, f"{name}_{k}", r, fakes[k], start) for k, r in enumerate(result)
        )

    def _adopt(self, node: fx.Node, name: str, value: Value, fake: Any, start: int) -> Value:
        layout = self._layout(name, fake)
        if (
            layout is not None
            and layout.shape != value.shape
            and not all(isinstance(n, int) for n in (*layout.shape, *value.shape))
        ):
            raise NotLowered  # a size with two different expressions
        if layout is None or layout.shape != value.shape or layout.dtype != value.dtype or not value.is_whole:
            what = f"the lowering of {node.target} returns another layout than eager"
            raise InternalError(Diagnostic("MD510", what, why=f"Expected {layout}, got {value}."))
        self.names.add(name)
        return self.builder.adopt(value, layout, start)

    def _value(self, node: fx.Node) -> Any:
        return self.known[node] if node in self.known else self.values[node]

    # Real tensors

    def _extern(self, node: fx.Node) -> None:
        args = self._constants_and_names(node.args)
        kwargs = tuple((key, self._constants_and_names(v)) for key, v in node.kwargs.items())
        name = self._define(node)
        layout = self.builder.buffers.get(name)
        if node.target is operator.getitem and isinstance(args[0], Name):
            source = node.args[0]
            aliases = self._aliases(source) if isinstance(source, fx.Node) else ()
            self.builder.nodes.append(GetItem(name, args[0].name, args[1], aliases, layout, self._origins(node)))
            return
        aliases, mutates = self._aliases(node), self._mutates(node)
        op, origins = runtime_target(node), self._origins(node)
        unused = () if aliases else tuple(self._unused(node, name))
        value, in_place = node.meta.get("val"), node.meta.get(IN_PLACE)
        count = len(value) if isinstance(value, list) else None
        extern = Extern(name, op, args, kwargs, aliases, mutates, layout, origins, in_place, unused, count)
        self.builder.nodes.append(extern)
        if not extern.is_view:  # later kernels read the written data from the input
            self.calls += 1
            self.values.update(self.stored)
            self.stored.clear()

    def _unused(self, node: fx.Node, name: str) -> Iterable[Buffer]:
        """Yields the layouts of the results that no node reads."""
        value = node.meta.get("val")
        read = {user.args[1] for user in node.users if user.target is operator.getitem}
        for index, item in enumerate(value) if isinstance(value, (tuple, list)) else ():
            layout = self._layout(f"{name}_{index}", item)
            if index not in read and layout is not None:
                yield layout

    def materialize(self, node: fx.Node, *, output: bool = False) -> str:
        """Returns the host name of the tensor of `node`; a view without a name gets an extern call now."""
        if node in self.host_names:
            return self.host_names[node]
        value = self.values[node]
        if isinstance(value, Value) and value.is_whole and not output:
            layout = self._layout("", node.meta["val"])
            if layout is not None and layout.stride == value.buffer.stride:
                return value.buffer.name
        source = node.args[0] if node.args else None
        if isinstance(source, fx.Node) and not output and self._is_same_view(node, source):
            return self.materialize(source)
        lowered = self.values[node]
        if output or not self._restride(node):
            self._extern(node)
        self.values[node] = lowered
        return self.host_names[node]

    def _restride(self, node: fx.Node) -> bool:
        """Replaces a chain of views by one extern call on the nearest tensor that exists; returns whether it did."""
        layout = self._layout("", node.meta["val"])
        source, length = node, 0
        while source not in self.host_names and source.target in RESTRIDING:
            argument = source.args[0]
            assert isinstance(argument, fx.Node)
            source, length = argument, length + 1
        if length < 2 or layout is None or not all(isinstance(n, int) for n in (*layout.shape, *layout.stride)):
            return False
        root = Name(self.materialize(source))
        name = self._define(node)
        args = root, layout.shape, layout.stride
        layout = self.builder.buffers[name]
        self.builder.nodes.append(Extern(name, RESTRIDE, args, (), (root.name,), (), layout, self._origins(node)))
        return True

    def _is_same_view(self, node: fx.Node, source: fx.Node) -> bool:
        """Returns whether a view changes nothing, not even strides."""
        layout, source_layout = self._layout("", node.meta.get("val")), self._layout("", source.meta.get("val"))
        return layout is not None and layout == source_layout and self.values.get(node) == self.values.get(source)

    def _constants_and_names(self, value: Any, *, output: bool = False) -> Any:
        known = self.known.get(value) if isinstance(value, fx.Node) else self.numbers.extent(value)
        if isinstance(known, (int, float, Size)) and not isinstance(value, (int, float)):
            return known
        if isinstance(value, fx.Node):
            return Name(self.materialize(value, output=output))
        if isinstance(value, (tuple, list)):
            return tuple(self._constants_and_names(v, output=output) for v in value)
        if isinstance(value, dict):
            what = "an extern call cannot take a dictionary"
            raise InternalError(Diagnostic("MD510", what, why=str(value)))
        return value

    def _aliases(self, node: fx.Node) -> tuple[str, ...]:
        """Returns the names of the arguments whose memory the result of `node` may share, by the operation's schema."""
        if isinstance(node.meta.get("val"), SYMBOLIC_NUMBERS) or node.target in FUNCTIONS:
            return ()
        if not isinstance(node.target, OpOverload):
            return tuple(self.host_names[n] for n in node.all_input_nodes if n in self.host_names)
        schema = node.target._schema
        shared = {s for r in schema.returns if r.alias_info is not None for s in r.alias_info.before_set}
        if not shared and registry.is_view(node.target):  # the schema of `_unsafe_view` declares no alias
            return tuple(self.host_names[n] for n in node.all_input_nodes[:1] if n in self.host_names)
        return tuple(self._schema_names(node, lambda info: bool(shared & set(info.before_set))))

    def _mutates(self, node: fx.Node) -> tuple[str, ...]:
        if not isinstance(node.target, OpOverload):
            return ()
        return tuple(self._schema_names(node, lambda info: bool(info.is_write)))

    def _schema_names(self, node: fx.Node, wanted: Any) -> Iterable[str]:
        schema = node.target._schema  # type: ignore[union-attr]
        for k, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and wanted(argument.alias_info):
                value = node.args[k] if k < len(node.args) else node.kwargs.get(argument.name)
                for n in as_sequence(value):
                    if isinstance(n, fx.Node):
                        yield self.materialize(n)

    # Writing into inputs

    def _store_into_input(self, node: fx.Node) -> bool:
        """Lowers a `copy_` into a placeholder to a loop nest that stores into the caller's tensor; returns whether it
        did.

        Of several `copy_` calls into an input, only the last must run. Readers in the same kernel read the value, not
        the input.
        """
        if node.target is not _COPY or not self._is_supported(node):
            return False
        target, source = node.args[:2]
        if not isinstance(target, fx.Node) or not isinstance(source, fx.Node) or target.op != "placeholder":
            return False
        layout, value = self.values[target], self.values[source]
        assert isinstance(layout, Value) and isinstance(value, Value)
        is_readable = self._record_write(layout.buffer, value) and self._is_computed(value.buffer)
        is_readable = is_readable or (value.is_whole and value.shape == layout.shape)
        if self.last_writes[target] is not node and is_readable:
            self.values[node] = value
            self.host_names[node] = self.materialize(source)
            return True
        buffer = layout.buffer
        is_written_twice = buffer.name in self.mutated or value.buffer.name in {buffer.name, *self.mutated}
        self.mutated.add(buffer.name)
        if is_written_twice or not has_no_overlap(buffer):
            return False
        axes = dimensions(buffer.shape, "i")
        at = tuple(as_index(v) for v in axes)
        body = V(value.broadcast_load(at)).to(buffer.dtype)
        self.builder.nodes.append(Loops(buffer, axes, at, body.expr, origins=self._origins(node)))
        self.host_names[node] = buffer.name
        self.values[node], self.stored[node] = layout, layout
        if value.is_whole and value.buffer.dtype == buffer.dtype and value.buffer.stride == buffer.stride:
            self.values[node] = value
        return True

    def _record_write(self, target: Buffer, value: Value) -> bool:
        """Records a write to an input if the elements of the value have the memory order of the input; returns whether
        it did."""
        buffer, input_value = value.buffer, Value.whole(target)
        if (buffer.dtype, buffer.numel, value.shape) != (target.dtype, target.numel, target.shape):
            return False
        if not has_no_overlap(target):
            return False
        if flatten(value.index, buffer.stride) != flatten(input_value.index, target.stride):
            return False
        self.writes.append(Write(target.name, buffer.name, self.calls))
        return True

    def _is_computed(self, buffer: Buffer) -> bool:
        return any(isinstance(node, Loops) and node.out is buffer for node in reversed(self.builder.nodes))
