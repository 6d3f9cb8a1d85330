"""Owns the meaning of tensor attributes and methods while tracing: constants, graph nodes, or a graph break.

Operators on tensors are in `operators.py`, functions of torch in `tracer/trace_rules.py`."""

from __future__ import annotations

import functools
import operator
from typing import NoReturn

import torch

from minidynamo.compat import knows_history, memory_of, set_version_counter, version_of
from minidynamo.graph.autograd_calls import replace_data
from minidynamo.graph.storage_resize import lower_version
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Computed, InstanceAttr
from minidynamo.tracer.calls.torch_overrides import instance_attributes, own_attribute, read_by_override
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy import facts
from minidynamo.tracer.numbers import graph_numbers, tensor_items
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import from_constant
from minidynamo.tracer.records.fix_hints import COMPILE_CLOSURE, is_of_optimizers
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import BoundBuiltin
from minidynamo.variables.objects import ClassVariable
from minidynamo.variables.tensors import GradFnVariable, TensorVariable

# Attributes that are known while tracing; reading an attribute guards the tensor.
_FLAGS = "cpu cuda meta mps xpu xla sparse sparse_csr quantized nested mkldnn"
FACTS = frozenset(("shape", "dtype", "device", "layout", "ndim", "requires_grad", "itemsize", "nbytes", "names"))
FACTS |= {f"is_{flag}" for flag in _FLAGS.split()}
FACTS = frozenset(name for name in FACTS if hasattr(torch.Tensor, name))  # newer versions have no `names`

# Attributes that are tensors computed from the tensor.
COMPUTED = frozenset(("T", "mT", "H", "mH", "real", "imag", "data"))

_VALUE = "The value is only known when the graph runs."
_AUTOGRAD = "It belongs to autograd or to storage."
_CHANGES = "It changes what a tensor is, not its values; the graph holds values only."

# Methods that end the graph -> (reason, replacement).
METHOD_BREAKS: dict[str, tuple[str, str]] = {
    "item": (_VALUE, "keep the tensor, or call .item() after the compiled function"),
    "tolist": (_VALUE, "keep the tensor, or call .tolist() after the compiled function"),
    "numpy": (_VALUE, "call .numpy() outside the compiled function"),
    "__bool__": (_VALUE, "torch.where(condition, a, b)"),
    "__int__": (_VALUE, "keep the tensor: x.to(torch.int64)"),
    "__float__": (_VALUE, "keep the tensor: x.to(torch.float64)"),
    "__index__": (_VALUE, "keep the tensor: xs.index_select(0, i)"),
    "__complex__": (_VALUE, "keep the tensor"),
    "__array__": (_VALUE, "call numpy outside the compiled function"),
    "__contains__": (_VALUE, "(t == item).any()"),
    "__repr__": (_VALUE, "print outside the compiled function"),
    "__str__": (_VALUE, "print outside the compiled function"),
    "__format__": (_VALUE, "format outside the compiled function"),
    "is_set_to": ("It compares storage.", ""),
    "is_shared": ("Guards do not check in which memory a tensor is.", ""),
    "_is_view": ("Guards do not distinguish views from other tensors.", ""),
    "backward": ("Gradients are computed by autograd, outside the graph.", "call .backward() outside"),
    "resize_": (_CHANGES, ""),
    "resize_as_": (_CHANGES, ""),
    "set_": (_CHANGES, "x.copy_(y)"),
    "share_memory_": (_CHANGES, ""),
    "pin_memory": ("It allocates memory outside the graph.", ""),
    "storage_offset": ("Guards do not check where in its storage a tensor starts.", ""),
    "data_ptr": ("An address is only known when the graph runs.", ""),
    "__dlpack__": ("It shares memory with another library.", ""),
    "__deepcopy__": ("Copies are created outside of the graph.", "x.clone()"),
    "__reduce_ex__": ("Pickling runs outside the graph.", ""),
}


@registry.attributes(TensorVariable)
def tensor_attribute(tx: Tracer, obj: TensorVariable, name: str) -> VariableTracker | None:
    return own_attribute(tx, obj, name) or torch_attribute(tx, obj, name)


def torch_attribute(tx: Tracer, obj: TensorVariable, name: str) -> VariableTracker | None:
    """Returns an attribute of torch, or of the instance; None if the tensor has neither."""
    found = read_by_override(tx, obj, name)
    if found is not None:
        return found
    if name == "shape":
        return facts.sizes(tx, obj)
    if name in FACTS:
        return facts.attribute(tx, obj, name)
    if name in COMPUTED:
        return tx.emit(getattr, [obj, from_constant(name)])
    if name in ("is_leaf", "grad_fn") and _requires_grad(tx, obj) and not knows_history(tx.graph.use(obj)):
        why = "Its base was made and written under different grad modes, so torch raises an error."
        tx.break_graph("MD212", f"`{name}` of a view is used", why=why)
    if graph_numbers.is_choice(obj) and name != "__class__" and not callable(getattr(obj.cls, name, None)):
        tx.break_graph("MD212", f"`{name}` of a tensor that `min` or `max` returns is used", why=_VALUE)
    if name == "is_leaf":
        return _is_leaf(tx, obj)
    if name == "grad_fn":
        return _grad_fn(tx, obj)
    if name == "grad":
        return _grad(tx, obj)
    if name == "_version":
        return _version(tx, obj)
    if name == "__class__":
        return ClassVariable(obj.cls)
    pending = tx.side_effects.attr(obj, name)
    if isinstance(pending, VariableTracker):
        return pending
    attributes = instance_attributes(tx, obj)
    if name in attributes and obj.source is not None:
        return tx.wrap(attributes[name], InstanceAttr(obj.source, name))
    if callable(getattr(obj.cls, name, None)):
        return BoundBuiltin(obj, name)
    if hasattr(obj.cls, name):
        tx.break_graph("MD212", f"`{name}` of a tensor is used", why=_AUTOGRAD)
    if obj.source is not None:
        tx.guard(obj.source, GuardKind.MISSING_ATTR, name)
    return None


def _is_leaf(tx: Tracer, obj: TensorVariable) -> VariableTracker:
    if obj.source is not None and not _requires_grad(tx, obj):
        return from_constant(True)
    fake, real = tx.graph.use(obj), tx.graph.real(obj)
    if fake.requires_grad and obj.source is not None and obj.cls is not torch.nn.Parameter:
        if real is None or real.is_leaf is not fake.is_leaf:
            why = "Guards check its value at the start of the frame."
            tx.break_graph("MD212", "`is_leaf` of an argument that has changed is used", why=why)
        tx.graph.shapes.require(Computed("{0}.is_leaf", (obj.source,)), real.is_leaf)
    return from_constant(fake.is_leaf)


def _requires_grad(tx: Tracer, obj: TensorVariable) -> bool:
    answer = facts.attribute(tx, obj, "requires_grad")
    return isinstance(answer, ConstantVariable) and bool(answer.value)


def _grad_fn(tx: Tracer, obj: TensorVariable) -> VariableTracker:
    if not _requires_grad(tx, obj):
        return from_constant(None)
    fake, real = tx.graph.use(obj), tx.graph.real(obj)
    if fake.is_leaf and (obj.source is None or obj.cls is torch.nn.Parameter):
        return from_constant(None)
    if obj.source is None:
        return tx.graph.grad_fns.setdefault(fake.grad_fn, GradFnVariable(obj, fake.grad_fn))
    if real is None or fake._version != tx.graph.initial_version(obj):
        tx.break_graph("MD212", "`grad_fn` of an argument that was written to is used", why=_AUTOGRAD)
    tx.graph.shapes.require(Computed("{0}.is_leaf", (obj.source,)), real.is_leaf)
    if real.grad_fn is None:
        return from_constant(None)
    tx.guard(Computed("{0}.grad_fn.name()", (obj.source,)), GuardKind.EQUALS, real.grad_fn.name())
    new = GradFnVariable(obj, real.grad_fn, source=Attr(obj.source, "grad_fn"))
    known = tx.graph.grad_fns.setdefault(real.grad_fn, new)
    if known.of is not obj:
        tx.break_graph("MD212", "two arguments have the same `grad_fn`", why="Guards do not compare autograd nodes.")
    return known


def _grad(tx: Tracer, obj: TensorVariable) -> VariableTracker:
    pending = tx.side_effects.attr(obj, "grad")
    if isinstance(pending, VariableTracker):
        return pending
    real = tx.graph.real(obj)
    if real is None and tx.graph.use(obj).is_leaf:
        return from_constant(None)
    if real is None or obj.source is None or not real.is_leaf:
        tx.break_graph("MD212", "`grad` of a computed tensor is used", why="Autograd fills it outside the graph.")
    return tx.wrap(real.grad, Attr(obj.source, "grad"))


# Methods that return Python values, which are known for a tensor computed from constants.
_VALUE_METHODS = frozenset(("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__complex__"))

# Methods that read a number -> the class to which they convert the number.
_NUMBER_METHODS: dict[str, type | None] = {"item": None, "tolist": None, "__int__": int, "__float__": float}


def call_tensor_method(
    tx: Tracer,
    receiver: TensorVariable,
    name: str,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    """Returns `receiver.name(*args, **kwargs)` as a graph node, or breaks the graph."""
    if name in _VALUE_METHODS and not args and not kwargs:
        known = tx.graph.constant(receiver)
        if known is not None:
            return from_constant(getattr(known, name)())
        number = tensor_items.read(tx, receiver) if name in _NUMBER_METHODS else None
        if number is not None:
            cls = _NUMBER_METHODS[name]
            return number if cls is None else tx.call(cls, [number])
        item = graph_numbers.read(tx, receiver, name)
        if item is not None:
            return item
    if name == "size" and not args and not kwargs:
        return facts.sizes(tx, receiver)
    if name in METHOD_BREAKS:
        why, fix = METHOD_BREAKS[name]
        if name == "backward" and any(is_of_optimizers(str(frame.namespace.get("__name__"))) for frame in tx.frames):
            fix = COMPILE_CLOSURE
        tx.break_graph("MD212", f"Tensor.{name}() is called", why=why, fix=f"Instead: {fix}" if fix else "")
    if not hasattr(torch.Tensor, name):
        tx.raises(AttributeError(f"'Tensor' object has no attribute {name!r}"))
    if _changes_shape(name) and tx.side_effects.has_gradient_to_assign(receiver):
        break_after_gradient(tx, f"Tensor.{name}()")
    return tx.emit(name, [receiver, *args], kwargs)


@functools.cache
def _changes_shape(name: str) -> bool:
    """Returns whether a method turns the tensor into a different view of its memory."""
    packet = getattr(torch.ops.aten, name, None) if name.endswith("_") and not name.startswith("_") else None
    overloads = () if packet is None else (getattr(packet, overload) for overload in packet.overloads())
    return any(torch.Tag.inplace_view in overload.tags for overload in overloads)


def break_after_gradient(tx: Tracer, what: str) -> NoReturn:
    """Ends the graph before an operation that changes a tensor's shape after an assignment to `.grad`.

    Torch rejects a gradient of a different shape, and `.grad` is assigned after the graph."""
    tx.break_graph("MD212", f"{what} follows an assignment to `grad`", why=_CHANGES)


def _version(tx: Tracer, tensor: TensorVariable) -> VariableTracker:
    """Returns `tensor._version` of an external tensor."""
    fake, real = tx.graph.use(tensor), tx.graph.real(tensor)
    lacks_counter = version_of(fake) is None or (real is not None and version_of(real) is None)
    targets = [node.target for node in tx.graph.graph.nodes]
    counts_differ = any(target is replace_data or "_foreach_" in str(target) for target in targets)
    if real is None or tensor.source is None or lacks_counter or counts_differ or tx.graph.subgraph is not None:
        tx.break_graph("MD212", "`_version` of a tensor is used", why=_AUTOGRAD)
    _guard_disjoint_from_written(tx, tensor)
    count = tx.graph.integer(real._version, Computed("{0}._version", (tensor.source,)))
    written = fake._version - tx.graph.initial_version(tensor)
    result = tx.call(operator.add, [count, from_constant(written)]) if written else count
    tx.graph.write_counts[result] = tensor, fake._version
    return result


@registry.function(set_version_counter)
def _set_version_counter(tx: Tracer, tensors: VariableTracker, versions: VariableTracker) -> VariableTracker:
    for tensor, version in zip(tx.unpack(tensors), tx.unpack(versions)):
        _restore_version(tx, tensor, version)
    return from_constant(None)


def _restore_version(tx: Tracer, tensor: VariableTracker, count: VariableTracker) -> None:
    """Sets torch's count of writes to the value that it had when the program read `count`."""
    known, before = tx.graph.write_counts.get(count, (None, 0))
    if not isinstance(tensor, TensorVariable) or known is not tensor or tx.graph.subgraph is not None:
        tx.break_graph(
            "MD212", "the version counter of a tensor is set to a value that was not read from it", why=_AUTOGRAD
        )
    if any("_foreach_" in str(node.target) for node in tx.graph.graph.nodes):  # torch counts real tensors only
        tx.break_graph("MD212", "the version counter is set after a write to a list of tensors", why=_AUTOGRAD)
    _guard_disjoint_from_written(tx, tensor)
    if written := tx.graph.use(tensor)._version - before:
        tx.emit(lower_version, [tensor, from_constant(written)])


def _guard_disjoint_from_written(tx: Tracer, tensor: TensorVariable) -> None:
    """Guards that no other external tensor that the graph writes shares memory with the tensor: views share a count."""
    own = memory_of(tx.graph.use(tensor))
    others = [other for other in tx.graph.written_tensors() if memory_of(other.fake) != own]
    if not facts.guard_no_shared_memory(tx, tensor, others):
        tx.break_graph("MD212", "the writes to a tensor are counted after a write to the same memory", why=_AUTOGRAD)
