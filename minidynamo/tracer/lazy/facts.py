"""Owns reads of single facts about a tensor. A tensor that no operation uses is guarded only for the facts that were
read.

`guards/tensors.py` has the common guard of the tensors that the graph uses.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo.compat import memory_of, without_torch_function
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant, Size, Source, TensorFact
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy.lazy_lists import LazyList, ListReader
from minidynamo.tracer.records.constants import from_constant
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.tensors import TensorVariable

# Calls that return one fact: methods (some take the number of a dimension) and functions of the same names.
_METHODS = "dim ndimension numel nelement element_size is_floating_point is_complex is_signed is_contiguous get_device"
_METHODS += " is_conj is_neg is_inference"
_FUNCTIONS = "numel is_floating_point is_complex is_signed is_conj is_neg is_inference"
ANSWERS: dict[Callable[..., Any] | str, str] = {name: name for name in (*_METHODS.split(), "size", "stride")}
ANSWERS |= {getattr(torch, name): name for name in _FUNCTIONS.split()}
_OF_A_DIMENSION = ("size", "stride")
_NUMBERS = ("numel", "nelement", "nbytes", "stride")  # numbers that may differ from call to call
_SINGLE = (bool, int, torch.dtype, torch.device, torch.layout)


def attribute(tx: Tracer, tensor: TensorVariable, name: str) -> VariableTracker:
    """Returns an attribute that is a fact."""
    if name == "nbytes" and tx.graph.is_guarded(tensor) and _is_symbolic(tensor, name, None):
        return tx.call(operator.mul, [tx.emit("numel", [tensor]), ConstantVariable(tensor.fake.itemsize)])
    if name in _NUMBERS:
        return _single_fact(tx, tensor, name) or tx.emit(getattr, [tensor, ConstantVariable(name)])
    return _single_fact(tx, tensor, name) or from_constant(getattr(tx.graph.use(tensor), name))


def answer(tx: Tracer, target: Callable[..., Any] | str, args: Sequence[VariableTracker]) -> VariableTracker | None:
    """Returns the result of a call in `ANSWERS` for a tensor that is not used; None if the call needs an operation."""
    tensor, name = args[0] if args else None, ANSWERS[target]
    if not isinstance(tensor, TensorVariable) or tx.graph.is_guarded(tensor):
        return None
    arguments = [arg.value for arg in args[1:] if isinstance(arg, ConstantVariable)]
    ndim = len(tensor.fake.shape)
    if name not in _OF_A_DIMENSION:
        return _single_fact(tx, tensor, name, ()) if len(args) == 1 else None
    if name == "stride" and len(args) == 1 and tensor.source is not None:
        tx.guard(TensorFact(tensor.source, "shape"), GuardKind.LENGTH, ndim)
        strides = [_single_fact(tx, tensor, name, (dim,)) for dim in range(ndim)]
        return TupleVariable([stride for stride in strides if stride is not None])
    if len(args) != 2 or len(arguments) != 1 or type(arguments[0]) is not int or not -ndim <= arguments[0] < ndim:
        return None
    if name == "size":
        return tx.graph.size(tensor, arguments[0])
    return _single_fact(tx, tensor, name, (arguments[0],))


def _single_fact(
    tx: Tracer, tensor: TensorVariable, name: str, args: tuple[int, ...] | None = None
) -> VariableTracker | None:
    """Returns a fact of the real tensor: the fake tensor would specialize or guard varying sizes."""
    real = tx.graph.real(tensor)
    if tensor.source is None or real is None or tx.graph.is_guarded(tensor):
        return None
    value = _read_fact(real, name, args)
    source = TensorFact(tensor.source, name if args is None else f"{name}({', '.join(map(str, args))})")
    if name in _NUMBERS and (_is_symbolic(tensor, name, args) or tx.graph.shapes.varies(source, value)):
        return tx.graph.integer(value, source)
    return tx.graph.fact(tensor, source, value) if type(value) in _SINGLE else None


def _read_fact(tensor: torch.Tensor, name: str, args: tuple[int, ...] | None) -> Any:
    with without_torch_function():  # code of the class, which would observe the read
        return getattr(tensor, name) if args is None else getattr(tensor, name)(*args)


def _is_symbolic(tensor: TensorVariable, name: str, args: tuple[int, ...] | None) -> bool:
    """Returns whether a number depends on sizes that vary."""
    name, args = ("numel", ()) if name == "nbytes" else (name, args)  # torch does not support nbytes of symbolic sizes
    return isinstance(_read_fact(tensor.fake, name, args), torch.SymInt)


def sizes(tx: Tracer, tensor: TensorVariable) -> VariableTracker:
    """Returns `tensor.shape`."""
    if tensor.source is not None and not tx.graph.is_guarded(tensor):
        source = TensorFact(tensor.source, "shape")
        return TupleVariable(_lazy_sizes(tx, tensor, source), torch.Size, source=source)
    shape = tx.graph.use(tensor).shape
    if all(type(size) is int for size in shape):
        return from_constant(shape)
    return TupleVariable([tx.graph.size(tensor, dim) for dim in range(len(shape))], torch.Size)


def _lazy_sizes(tx: Tracer, tensor: TensorVariable, shape: TensorFact) -> LazyList:
    """Returns the sizes of a tensor that is not used. Each size is read separately; an unread size is not guarded."""

    read = functools.cache(tx.graph.size)

    def size(_: object, source: Source, *, presence_guarded: bool) -> VariableTracker:
        assert isinstance(source, Size)
        return read(tensor, source.dim)

    length = Computed("{0}({1})", (Constant(len, "len"), shape))
    reader = ListReader((*tensor.fake.shape,), tuple, length, lambda dim: Size(shape.of, dim), size)
    return LazyList(tx.graph, shape, reader)


def guard_no_shared_memory(tx: Tracer, tensor: TensorVariable, others: Sequence[TensorVariable]) -> bool:
    """Guards that an external tensor shares no memory with the external tensors `others`. Returns False if it does."""
    real, reals = tx.graph.real(tensor), [tx.graph.real(other) for other in others]
    memories = [memory_of(other) for other in reals if other is not None]
    sources = [each.source for each in (tensor, *others) if each.source is not None]
    if real is None or len(sources) <= len(others) or len(memories) < len(others) or memory_of(real) in memories:
        return False
    if others:
        memory_of_each = [f"{{0}}({{{position}}})" for position in range(1, len(sources) + 1)]
        condition = f"{memory_of_each[0]} not in ({', '.join(memory_of_each[1:])},)"
        tx.graph.shapes.require(Computed(condition, (Constant(memory_of, "memory_of"), *sources)), True)
    return True
