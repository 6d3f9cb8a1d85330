"""Owns the graph pass that removes mutation: in-place and view operations become operations on values.

`functional_graph.py` defines values and writes to values. This pass records the writes to inputs; later stages decide
where the new data is copied to the inputs.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.functional_graph import OVERLAPS, Base, FunctionalGraph, Value, refuse
from minidynamo.autograd.functional.shape_only_reads import read_inputs, replace_unread
from minidynamo.autograd.functional.storage_resize import check_readable, record_fill, replace_discarded_copies, resize
from minidynamo.autograd.graph.graph_builder import GraphBuilder, same_layout
from minidynamo.autograd.graph.mutation import (
    UNDECLARED,
    Mutation,
    arguments_from_out,
    is_metadata_mutation,
    is_undeclared_write,
    is_view,
    mutation_of,
    named_arguments,
)
from minidynamo.autograd.graph.numbers import is_symbolic, key, keys, simplified
from minidynamo.autograd.graph.signature import ViewStep
from minidynamo.autograd.graph.views import is_elementwise, overlaps_itself, same_elements, share_elements
from minidynamo.autograd.trace.joint import Trace
from minidynamo.compat import OpOverload
from minidynamo.graph.marks import WRITTEN
from minidynamo.graph.pytree import nodes_in
from minidynamo.graph.storage_resize import copy_unseen, resize_storage

aten = torch.ops.aten

# Operators that change only the gradient history; the traced gradients contain the change already.
IDENTITIES = frozenset({aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.detach_.default})


# Python type -> dtype that represents each of its numbers.
_EXACT: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    torch.SymBool: torch.bool,
    torch.SymInt: torch.int64,
    torch.SymFloat: torch.float64,
}


def functionalize(
    trace: Trace, names: Sequence[str], flat: Sequence[Any], *, keeps_numbers: bool = False
) -> FunctionalGraph:
    """Returns the graph of `trace` without mutation.

    The placeholders are `names`, one per value of `flat`, then tangents, then constants. With `keeps_numbers`, the
    graph also computes the numbers that became constant during tracing; values then have the same names
    (`value_keys.py`) as in a trace where these numbers are not constant.

    Raises GraphRefused MD402 for a write that has no functional form: a write to the shape or storage of an input,
    through an operator without a functional variant, or to an input that shares memory with another input.
    """
    return _Pass(trace, keeps_numbers).run(names, flat)


class _Pass:
    def __init__(self, trace: Trace, keeps_numbers: bool) -> None:
        self.trace = trace
        self.keeps_numbers = keeps_numbers
        self.result = FunctionalGraph(GraphBuilder(trace.mode))
        self.emitter = self.result.emitter
        #: The bases of `as_strided` with an offset, and the traced nodes.
        self.fixed_windows: list[tuple[Base, fx.Node]] = []
        self.resizes = bool(trace.graph.find_nodes(op="call_function", target=resize_storage))

    def run(self, names: Sequence[str], flat: Sequence[Any]) -> FunctionalGraph:
        for index, (name, value) in enumerate(zip(names, flat)):
            old = self.trace.primals.get(index)
            placeholder = self.emitter.placeholder(name, value if old is None else old.meta["val"])
            self.result.placeholders.append(placeholder)
            if index in self.trace.numbers:
                self.result.nodes[self.trace.numbers[index]] = placeholder
            if old is not None:
                self.result.inputs[index] = self.fresh(old, placeholder)
                self.result.inputs[index].base.input = index
        for node in self.trace.tangents:
            self.fresh(node, self.emitter.placeholder(node.name, node.meta["val"]))
            self.result.tangents.append(self.result.values[node].node)
        self.lift_constants()
        for node in self.trace.graph.nodes:
            if node in self.trace.tangents[:1]:
                self.result.forward_nodes = frozenset(self.emitter.graph.nodes)
            if node.op == "get_attr" and node not in self.result.values:
                self.create_number(node)
            if node.op == "call_function":
                with self.emitter.replacing(node):
                    self.emit_without_mutation(node)
        self.refuse_lost_history(flat)
        self.refuse_shared_inputs()
        self.refuse_fixed_windows()
        replace_discarded_copies(self.result)
        return self.result

    def lift_constants(self) -> None:
        """Turns tensors made from Python data into placeholders, and tensors without data into `empty_strided`
        calls."""
        for node in self.trace.graph.find_nodes(op="get_attr"):
            tensor = operator.attrgetter(node.target)(self.trace.owner)
            if tensor.is_meta:
                facts = {"dtype": tensor.dtype, "device": tensor.device}
                lifted = self.emitter.emit(aten.empty_strided.default, [*tensor.shape], [*tensor.stride()], **facts)
                self.fresh(node, lifted)
            elif tensor.ndim:
                lifted = self.emitter.placeholder(
                    node.name.strip("_"), self.trace.mode.from_tensor(tensor, static_shapes=True)
                )
                self.result.constants[lifted] = tensor
                self.fresh(node, lifted)

    def create_number(self, node: fx.Node) -> None:
        """Creates the tensor of a Python full where it is first read, as in eager."""
        tensor = operator.attrgetter(str(node.target))(self.trace.owner)
        full = self.emitter.emit(aten.full.default, [], tensor.item(), dtype=tensor.dtype, device=tensor.device)
        self.fresh(node, full)

    def fresh(self, old: fx.Node, new: fx.Node) -> Value:
        """Records that the traced node `old` is new memory with the value `new`."""
        value = self.result.values[old] = Value(Base(new), new, 0)
        return value

    def current(self, arg: Any) -> Any:
        """Translates an argument of the traced graph to an argument of the functional graph."""
        return fx.map_arg(arg, self.current_node)

    def current_node(self, old: fx.Node) -> Any:
        if old in self.result.values:
            value = self.result.values[old]
            if self.result.forward_nodes:
                self.result.read_by_backward.add(value.base)
            return self.result.read(value)
        return self.result.nodes[old]

    def emit_without_mutation(self, node: fx.Node) -> None:
        op, values = node.target, self.result.values
        source = node.args[0] if node.args else None
        if isinstance(node.meta.get("val"), compat.SYMBOLIC_NUMBERS):
            self.emit_number(node)
        elif op is operator.getitem:
            self.take_element(node)
        elif node in self.trace.input_copies or op in IDENTITIES:
            self.refuse_input_metadata(node, only=aten.detach_.default)
            values[node] = values[source]  # type: ignore[index]
        elif op is aten.lift_fresh_copy.default:
            self.fresh(node, self.current(source))
        elif not isinstance(op, OpOverload):
            self.emit_operation(node)
        elif op is resize_storage:
            resize(self.result, node, self.current(node.args[1]))
        elif is_metadata_mutation(op):
            self.metadata_mutation(node, op)
        elif is_undeclared_write(op, node.args):
            self.undeclared_write(node)
        elif (mutation := mutation_of(op)) is not None:
            self.mutate(node, op, mutation)
        elif is_view(op) and source in values:
            self.record_view(node, op)
        else:
            self.emit_operation(node)

    def emit_number(self, node: fx.Node) -> None:
        """Emits a number once, and not at all if it became constant."""
        value = simplified(node.meta["val"])
        emitted = self.emitter.numbers.get(key(value)) if is_symbolic(value) else value
        if self.keeps_numbers and not is_symbolic(value):
            value, emitted = node.meta["val"], None
        if emitted is None:
            assert callable(node.target)
            emitted = self.emitter.emit_known(node.target, self.current(node.args), self.current(node.kwargs), value)
        self.result.nodes[node] = emitted

    def take_element(self, node: fx.Node) -> None:
        owner, index = node.args
        assert isinstance(owner, fx.Node)
        if owner in self.result.values:  # a list of views
            self.record_view(node, operator.getitem)
        elif isinstance(elements := self.result.nodes[owner], (list, tuple)):
            if isinstance(elements[index], Value):  # type: ignore[index]
                self.result.values[node] = elements[index]  # type: ignore[index]
            else:
                self.fresh(node, elements[index])  # type: ignore[index]
        else:
            self.fresh(node, self.emitter.element(elements, index))  # type: ignore[arg-type]

    def emit_operation(self, node: fx.Node) -> None:
        """Emits an operation that neither writes nor views."""
        self.check_readable(node)
        args, kwargs = self.current(node.args), self.current(node.kwargs)
        args = replace_unread(self.emitter, node.target, args)  # an unread argument would be saved for backward
        emitted = self.emit_like(node, args, kwargs)
        if isinstance(node.meta.get("val"), (list, tuple)):
            self.result.nodes[node] = emitted
        else:
            self.fresh(node, emitted)

    def check_readable(self, node: fx.Node) -> None:
        """Raises an error if an operation reads memory that was freed, or not filled yet."""
        if self.resizes:
            check_readable(self.result, node, read_inputs(node))

    def emit_like(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        """Emits `node` with new arguments. The traced fake value is reused if the layouts of all arguments are
        unchanged."""
        assert callable(node.target)
        inputs = [same_layout(old.meta.get("val"), self.current_node(old).meta["val"]) for old in self.tensors_of(node)]
        if "val" in node.meta and all(inputs):
            return self.emitter.emit_known(node.target, args, kwargs, node.meta["val"])
        return self.emitter.emit(node.target, *args, **kwargs)

    def tensors_of(self, node: fx.Node) -> list[fx.Node]:
        """Returns the inputs of a traced node except numbers, which have no layout."""
        return [old for old in node.all_input_nodes if not isinstance(old.meta.get("val"), compat.SYMBOLIC_NUMBERS)]

    def record_view(self, node: fx.Node, op: Any) -> None:
        """Records a view of the first argument. An in-place view replaces its argument."""
        source, *rest = node.args
        assert isinstance(source, fx.Node)
        parent = self.result.values[source]
        base = parent.base
        args, kwargs = self.current(tuple(rest)), self.current(node.kwargs)
        step = ViewStep(op, args, tuple(kwargs.items()))
        if op is aten.as_strided.default and len(rest) > 2 and rest[2] is not None and not self.result.forward_nodes:
            self.fixed_windows.append((base, node))
        viewed = self.result.read(parent)
        if same_layout(viewed.meta["val"], source.meta["val"], memory=True):
            emitted = self.emitter.emit_known(op, (viewed, *args), kwargs, node.meta["val"])
        else:
            emitted = self.emitter.emit(op, viewed, *args, **kwargs)
        self.result.values[node] = Value(
            base, _origin(emitted, base.node if base.input is not None else None), base.version, parent, step
        )

    def metadata_mutation(self, node: fx.Node, op: OpOverload) -> None:
        self.refuse_input_metadata(node)
        mutation = mutation_of(op)
        if mutation is None or mutation.functional is None or not is_view(mutation.functional):
            raise refuse(f"`{op}` replaces the memory of a tensor inside a graph")
        self.record_view(node, mutation.functional)

    def refuse_input_metadata(self, node: fx.Node, only: OpOverload | None = None) -> None:
        value = self.result.values.get(node.args[0]) if node.args else None  # type: ignore[arg-type]
        if only in (None, node.target) and value is not None and value.base.input is not None:
            raise refuse(f"`{node.target}` changes an input's shape, memory or history, not its data")

    def undeclared_write(self, node: fx.Node) -> None:
        self.check_readable(node)
        positions, functional = UNDECLARED[node.target]  # type: ignore[index]
        call = self.emitter.emit(functional, *self.current(node.args), **self.current(node.kwargs))
        results = len(call.meta["val"]) - len(positions)
        call.meta[WRITTEN] = {results + k: position for k, position in enumerate(positions)}
        elements = [self.emitter.element(call, i) for i in range(len(call.meta["val"]))]
        for position, new in zip(positions, elements[results:]):
            self.assign(node.args[position], new)
        self.result.nodes[node] = elements[:results]

    def mutate(self, node: fx.Node, op: OpOverload, mutation: Mutation) -> None:
        """Emits the functional variant of `op`, and assigns its results to the written arguments."""
        named = named_arguments(op, node.args, node.kwargs)
        self.refuse_written_twice(op, mutation, named)
        record_fill(self.result, op, mutation, named)
        self.check_readable(node)
        if op in (aten.copy_.default, copy_unseen):
            new = [self.copied(named["self"], named["src"])]
        elif op in (aten.zero_.default, aten.fill_.Scalar):
            filling = self.current(named.get("value", 0))
            new = [self.emitter.emit(aten.full_like.default, self.current(named["self"]), filling)]
        else:
            new = self.call_functional(op, mutation, named)
        for name, value in zip(mutation.arguments, new[mutation.own_results :]):
            if named[name] is not None:
                self.assign(named[name], value)
                if not op.name().startswith("aten::_foreach_"):  # counted on fake tensors as well
                    self.count_list_writes(named[name])
        own = iter(new)
        returned = [next(own) if name is None else self.result.values[named[name]] for name in mutation.returns]
        if len(returned) != 1 or isinstance(node.meta.get("val"), (list, tuple)):
            self.result.nodes[node] = returned
        elif isinstance(returned[0], Value):
            self.result.values[node] = returned[0]
        else:
            self.fresh(node, returned[0])

    def refuse_written_twice(self, op: OpOverload, mutation: Mutation, named: dict[str, Any]) -> None:
        """Refuses arguments that share memory: in eager a write to one changes the other."""
        written = self.tensors_in([named[name] for name in mutation.arguments])
        read = self.tensors_in([value for name, value in named.items() if name not in mutation.arguments])
        twice = len({self.result.values[node].base for node in written}) < len(written)
        # The tensors of a list are written in sequence, so a list may only read the tensor at the written position.
        crossed = len(written) > 1 and any(
            not _is_paired(named, mutation, *pair) for pair in itertools.product(written, read) if self.shares(*pair)
        )
        if (
            twice
            or crossed
            or any(self.may_alias_write(op, mutation, *pair) for pair in itertools.product(written, read))
        ):
            raise refuse(f"`{op}` gets the same memory twice, and writes to it")

    def tensors_in(self, value: Any) -> list[fx.Node]:
        return [node for node in nodes_in(value) if node in self.result.values]

    def shares(self, a: fx.Node, b: fx.Node) -> bool:
        return self.result.values[a].base is self.result.values[b].base

    def may_alias_write(self, op: OpOverload, mutation: Mutation, written: fx.Node, read: fx.Node) -> bool:
        """Returns whether `op` may read an argument from memory after writing to the memory, or refuses such
        arguments."""
        if not self.shares(written, read):
            return False
        values = written.meta["val"], read.meta["val"]
        if op.namespace != "aten":  # the operator may read at any time
            return True
        return not (is_elementwise(op, mutation) and same_elements(*values)) and share_elements(*values)

    def call_functional(self, op: OpOverload, mutation: Mutation, named: dict[str, Any]) -> list[Any]:
        functional = mutation.functional
        if functional is None:
            raise refuse(f"`{op}` writes to its arguments, and no operator is known that returns the data instead")
        arguments = {name: self.current(value) for name, value in named.items() if name not in mutation.dropped}
        if torch.Tag.nondeterministic_seeded in op.tags:
            arguments |= self.result.tensors_to_fill(
                op, {name: named[name].meta["val"] for name in mutation.arguments}, arguments
            )
        names = [arg.name for arg in compat.schema_of(functional).arguments]
        order = [arg.name for arg in compat.schema_of(op).arguments if arg.name not in mutation.dropped]
        keyword_only = {arg.name for arg in compat.schema_of(functional).arguments if arg.kwarg_only}
        renamed = {new: arguments[old] for old, new in zip(order, names) if old in arguments}
        if mutation.dropped and isinstance(out := named[mutation.dropped[0]], fx.Node):
            renamed |= arguments_from_out(
                out.meta["val"], {*names} - {key for key in renamed if renamed[key] is not None}
            )
        args: list[Any] = []
        while len(args) < len(names) and names[len(args)] in renamed and names[len(args)] not in keyword_only:
            args.append(renamed.pop(names[len(args)]))
        renamed = {name: value for name, value in renamed.items() if value is not None}
        if functional is aten.bernoulli.p:
            return [self.bernoulli_mask(*args, **renamed)]
        try:
            emitted = self.emitter.emit(functional, *args, **renamed)
        except RuntimeError as error:  # `masked_scatter_` is checked at run time, `masked_scatter` during tracing
            raise refuse(f"`{functional}` does not accept the arguments of `{op}`: {error}") from error
        if isinstance(emitted.meta["val"], torch.Tensor):
            written = None if mutation.dropped else arguments[mutation.arguments[0]]
            if written is not None and emitted.args and emitted.args[0] is written:
                emitted.meta[WRITTEN] = {0: 0}
            return [emitted]
        elements = [self.emitter.element(emitted, i) for i in range(len(emitted.meta["val"]))]
        positions = [order.index(name) for name in mutation.arguments if name in order]
        if mutation.own_results + len(mutation.arguments) == 1:  # a list in, a list out
            emitted.meta[WRITTEN] = {k: position for k in range(len(elements)) for position in positions}
            return [elements]
        if not mutation.dropped:
            emitted.meta[WRITTEN] = {mutation.own_results + k: position for k, position in enumerate(positions)}
        return elements

    def bernoulli_mask(self, layout: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
        """Returns zeros and ones in the layout of `layout`.

        In training the numbers are computed from bools, which forward saves in one byte per element. A CPU draws the
        same numbers for every dtype, so no larger tensor is created on a CPU.
        """
        like = layout.meta["val"]
        as_mask = self.trace.training and like.dtype.itemsize > 1
        sizes = [*like.shape], [*like.stride()]
        if as_mask and like.device.type == "cpu" and all(type(size) is int for size in (*sizes[0], *sizes[1])):
            layout = self.emitter.emit(aten.empty_strided.default, *sizes, dtype=torch.bool, device=like.device)
        # The in-place operator draws in memory order; the functional operator does so only for contiguous tensors.
        drawn = self.emitter.in_memory_order(layout, layout.meta["val"], aten.bernoulli.p, *args, **kwargs)
        if not as_mask:
            return drawn
        if drawn.meta["val"].dtype != torch.bool:
            drawn = self.emitter.emit(aten.ne.Scalar, drawn, 0)
        return self.emitter.emit(aten._to_copy.default, drawn, dtype=like.dtype)

    def copied(self, target: fx.Node, source: Any) -> fx.Node:
        """Returns the data of `target` after `target.copy_(source)`."""
        like = target.meta["val"]
        node = self.current(source)
        value = node.meta["val"] if isinstance(node, fx.Node) else node
        if not isinstance(value, torch.Tensor):
            exact = _EXACT[type(value)]
            node = self.emitter.emit(aten.scalar_tensor.default, node, dtype=exact, device=like.device)
        if keys(node.meta["val"].shape) != keys(like.shape):
            node = self.emitter.emit(aten.expand.default, node, self.emitter.sizes(self.current(target)))
        data = self.emitter.cast(node, like)
        if data not in self.result.placeholders:
            return data
        # The value must not be an input: the input may be written later.
        laid_out = self.emitter.restride(data, like)
        return laid_out if laid_out is not data else self.emitter.emit(aten.clone.default, data)

    def count_list_writes(self, written: Any) -> None:
        """Counts the writes of an operation on lists of tensors, which torch counts only for real tensors."""
        for tensor in written if isinstance(written, (list, tuple)) else ():
            self.result.values[tensor].base.uncounted += 1

    def assign(self, target: Any, new: Any) -> None:
        if isinstance(target, (list, tuple)):
            new = new if isinstance(new, list) else [self.emitter.element(new, i) for i in range(len(target))]
            for tensor, value in zip(target, new):
                self.assign(tensor, value)
            return
        value = self.result.values[target]
        if overlaps_itself(target.meta["val"]):
            raise refuse(OVERLAPS)
        like = self.result.read(value).meta["val"]
        if keys(new.meta["val"].shape) != keys(like.shape) and tuple(new.meta["val"].shape) != tuple(like.shape):
            raise refuse("an operation with `out=` resizes its output")
        new = self.emitter.cast(new, like)
        self.result.write(value, new)

    def refuse_lost_history(self, flat: Sequence[Any]) -> None:
        """Refuses a `detach_` of an input: autograd runs `detach_` itself and leaves no node in the graph."""
        for index, requires_grad in self.trace.requires_grad.items():
            if flat[index].requires_grad and not requires_grad:
                raise refuse("an input is detached from its history")

    def refuse_shared_inputs(self) -> None:
        """Refuses writes to inputs that share memory with each other or have overlapping elements: each input has its
        own base."""
        owners: dict[Any, list[Base]] = {}
        for index, value in self.result.inputs.items():
            traced = self.trace.primals[index].meta["val"]
            if value.base.version and overlaps_itself(traced):
                raise refuse("an input whose elements share memory is written", value.base.node)
            owners.setdefault(compat.memory_of(traced), []).append(value.base)
        for bases in owners.values():
            written = [base.node for base in bases if base.version]
            if len(bases) > 1 and written:
                raise refuse("an input that shares memory with another input is written", written[0])

    def refuse_fixed_windows(self) -> None:
        """Refuses `as_strided` with an offset if the graph moves values to other memory.

        The offset counts from the start of the storage, so the result depends on the address of a tensor. The address
        changes for a value that is stored in an input, and for derivatives.
        """
        written = any(value.base.version for value in self.result.inputs.values())
        differentiated = self.trace.tangents and any(base.input is not None for base, _ in self.fixed_windows)
        if self.fixed_windows and (written or differentiated):
            what = "`as_strided` counts from the start of a storage, and the graph stores values in other memory"
            raise refuse(what, self.fixed_windows[0][1])


def _is_paired(named: dict[str, Any], mutation: Mutation, written: fx.Node, read: fx.Node) -> bool:
    """Returns whether `read`, a tensor of a list, is read only at the position of `written` in its own list."""
    if any(value is read for name, value in named.items() if name not in mutation.arguments):
        return False
    lists = {name: value for name, value in named.items() if isinstance(value, (list, tuple))}
    outputs = [value for name, value in lists.items() if name in mutation.arguments]
    positions = {k for value in outputs for k, tensor in enumerate(value) if tensor is written}
    return {k for value in lists.values() for k, tensor in enumerate(value) if tensor is read} <= positions


def _origin(view: fx.Node, end: fx.Node | None) -> fx.Node:
    """Returns a source of `view` with the same layout and memory, not beyond `end`; `view` itself if there is none.

    For example, gradients of transposed weights are transposed back.
    """
    value, source = view.meta["val"], view
    while source is not end and isinstance(source.target, OpOverload) and is_view(source.target):
        source = source.all_input_nodes[0]
        old = source.meta["val"]
        # Conjugation and negation are views that do not change the layout.
        if same_layout(old, value, memory=True) and (old.is_conj(), old.is_neg()) == (value.is_conj(), value.is_neg()):
            return source
    return view
