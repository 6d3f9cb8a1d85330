"""Owns the numbers that tensors of one element hold, where Python can follow them: what `item()` gives while tracing.

A tensor on the CPU that comes from outside holds a number that Python can read before the graph runs; what the graph
then does to such a tensor is done to the number, too, rounded as the tensor rounds: `step += 1` of an optimizer. So
what a program computes of it stays a number of the frame (`arithmetic.py`), as does a size that it makes a tensor of;
what it decides by it is guarded. Nothing is read, or guarded, before the program asks. What is written in a way that is
not known here cannot be read.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from minidynamo.compat import constant_behind, foreach_add_, foreach_copy_, foreach_mul_, memory_of, owns_its_memory
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant, Held
from minidynamo.tracer.numbers import arithmetic, numpy_numbers
from minidynamo.tracer.protocol import Number, Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import ListVariable, SequenceVariable, SliceVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.tensors import TensorVariable

Args = Sequence[VariableTracker]
Kwargs = Mapping[str, VariableTracker]
# Tensors, and the numbers that they hold.
Numbers = list[tuple[TensorVariable, Number]]

_FLOATS = (torch.float32, torch.float64)
_DTYPES = (*_FLOATS, torch.int64)
_DEEPEST = 50  # operations on one number: what is asked of it is written as one expression
_LARGEST = 2**62  # so that the next sum, or difference, does not leave the integers of tensors
_FLOAT32 = Constant(ctypes.c_float, "c_float")
_OWNS = Constant(owns_its_memory, "owns_its_memory")


def read(tx: Tracer, tensor: TensorVariable) -> VariableTracker | None:
    """The number that a tensor holds at this point of the program; None when only the graph's run can tell."""
    number = _held(tx, tensor)
    return None if number is None else number()


def _held(tx: Tracer, tensor: TensorVariable) -> Number | None:
    """The number in a tensor now, whatever is written to the tensor before somebody asks for it."""
    fake = tx.graph.use(tensor)
    if fake.ndim or fake.device.type != "cpu" or fake.layout is not torch.strided:
        return None
    if fake.dtype not in (*_DTYPES, torch.bool):
        return None
    known = constant_behind(fake)
    if known is not None:
        return _always(ConstantVariable(known.item()))
    if fake.untyped_storage().nbytes() != fake.itemsize:
        return None
    return tx.graph.held_numbers.setdefault(memory_of(fake), functools.cache(lambda: _arriving(tx, tensor)))


def _arriving(tx: Tracer, tensor: TensorVariable) -> VariableTracker | None:
    """The number with which a tensor comes from outside, where Python reads it before the graph runs."""
    real, source = tx.graph.real(tensor), tensor.source
    if real is None or source is None or tx.graph.subgraph is not None or not owns_its_memory(real):
        return None
    tx.graph.shapes.require(Computed("{0}({1})", (_OWNS, source)), True)
    if real.dtype is torch.bool:
        tx.guard(Held(source), GuardKind.EQUALS, real.item())
        return ConstantVariable(real.item())
    if real.dtype in _FLOATS:
        return tx.graph.floating(real.item(), Held(source))
    number = tx.graph.integer(int(real.item()), Held(source))
    return number if _is_between(tx, number, -_LARGEST, _LARGEST) else None


def _filled(value: float, dtype: torch.dtype) -> Number:
    """What a tensor of this dtype holds that is filled with `value`."""
    return _always(ConstantVariable(torch.tensor(value, dtype=dtype, device="cpu").item()))


def _always(number: VariableTracker) -> Number:
    return lambda: number


def _operand(tx: Tracer, variable: VariableTracker, dtype: torch.dtype, *, casts: bool) -> Number | None:
    """The number that an operation in `dtype` takes. Unless it `casts`, tensors have that dtype."""
    if isinstance(variable, TensorVariable):
        held, own = _held(tx, variable), tx.graph.use(variable).dtype
        return held if own is dtype else _rounding(tx, held, dtype) if casts else None
    kinds = (int, float) if casts or dtype in _FLOATS else (int,)
    return _rounding(tx, _always(variable), dtype) if variable.python_type in kinds else None


def _rounding(tx: Tracer, number: Number | None, dtype: torch.dtype) -> Number | None:
    if number is None:
        return None
    return _Followed(lambda: None if (given := number()) is None else _rounded(tx, given, dtype), _depth(number))


def _rounded(tx: Tracer, number: VariableTracker, dtype: torch.dtype) -> VariableTracker | None:
    """A number as a tensor of this dtype holds it."""
    if dtype is torch.bool:
        return ConstantVariable(tx.truth(number))
    if dtype is torch.int64 and not _is_between(tx, number, -_LARGEST, _LARGEST):
        return None
    if isinstance(number, ConstantVariable):
        return ConstantVariable(torch.tensor(number.value, dtype=dtype, device="cpu").item())
    cls = float if dtype in _FLOATS else int
    if not isinstance(number, NumberVariable) or number.cls is not cls or number.source is None:
        return None
    if dtype is not torch.float32:
        return number
    rounded = arithmetic.computed_text("{0}({1}).value", _FLOAT32, number)
    return None if rounded is None else tx.graph.floating(ctypes.c_float(number.here).value, rounded)


class _Followed:
    """The number in a tensor that was computed from others, in so many steps; it is computed once, when it is read."""

    def __init__(self, compute: Number, depth: int) -> None:
        self.compute = functools.cache(compute)
        self.depth = depth

    def __call__(self) -> VariableTracker | None:
        return self.compute()


def _depth(number: Number) -> int:
    return number.depth if isinstance(number, _Followed) else 0


def _result(
    tx: Tracer, function: Callable[..., Any] | None, operands: Sequence[Number | None], dtype: torch.dtype
) -> Number | None:
    """What a tensor holds that `function` gives for the operands; without a function, the first of them."""
    given = [operand for operand in operands if operand is not None]
    depth = 1 + max((_depth(operand) for operand in given), default=0)
    if len(given) < len(operands) or depth > _DEEPEST:
        return None

    def number() -> VariableTracker | None:
        values = [value for operand in given if (value := operand()) is not None]
        if len(values) < len(given) or (function is operator.truediv and not tx.truth(values[1])):
            return None  # where torch gives infinity, Python would raise
        if function in _ROUNDING and not (
            _is_between(tx, values[0], -1, _LARGEST) and _is_between(tx, values[1], 0, _LARGEST)
        ):
            return None  # of others, torch's ways to round are not all Python's
        return values[0] if function is None else _rounded(tx, tx.call(function, values), dtype)

    return _Followed(number, depth)


def _is_between(tx: Tracer, number: VariableTracker, least: int, most: int) -> bool:
    """Whether a number is larger than the one and smaller than the other, which is guarded."""
    return tx.truth(tx.call(operator.gt, [number, ConstantVariable(least)])) and tx.truth(
        tx.call(operator.lt, [number, ConstantVariable(most)])
    )


# What the graph writes and makes


def written(tx: Tracer, target: Any, args: Args, kwargs: Kwargs) -> Numbers:
    """The tensors that a call is about to write numbers to which can be followed, and those numbers."""
    if target not in _WRITES or not args or not _adds_once(kwargs):
        return []
    function, is_list = _WRITES[target]
    if not is_list:
        return _written_to(tx, function, args[0], args[1:])
    receivers = args[0].items if isinstance(args[0], SequenceVariable) else []
    columns = [arg.items if isinstance(arg, SequenceVariable) else [arg] * len(receivers) for arg in args[1:]]
    memories = [memory_of(tx.graph.use(v)) for v in receivers if isinstance(v, TensorVariable)]
    read = {memory_of(tx.graph.use(v)) for column in columns for v in column if isinstance(v, TensorVariable)}
    if len({*memories, *read}) < len(memories) + len(read):
        return []  # one after the other, they could read what was written before
    pairs = zip(receivers, *columns)
    return [one for receiver, *others in pairs for one in _written_to(tx, function, receiver, others)]


def _adds_once(kwargs: Kwargs) -> bool:
    """Whether the call has no keywords that change what it computes."""
    return all(name == "alpha" and isinstance(v, ConstantVariable) and v.value == 1 for name, v in kwargs.items())


def _written_to(tx: Tracer, function: Callable[..., Any] | None, receiver: VariableTracker, others: Args) -> Numbers:
    if not isinstance(receiver, TensorVariable) or len(others) > 1:
        return []
    dtype = tx.graph.use(receiver).dtype
    right = [_operand(tx, other, dtype, casts=function is None) for other in others]
    left = [_held(tx, receiver)] if function is not None else [] if others else [_filled(0.0, dtype)]
    number = _result(tx, function, [*left, *right], dtype)
    return [] if number is None else [(receiver, number)]


def made(tx: Tracer, target: Any, args: Args, result: VariableTracker) -> Numbers:
    """The tensor that a call has made, if it holds one number that can be followed, and that number."""
    if not isinstance(result, TensorVariable) or not (target in _FILLS or target in _COMPUTES or target in _COMPARES):
        return []
    fake = tx.graph.use(result)
    if target in _COMPARES and not fake.ndim:
        return _compared(tx, target, args, result)
    if fake.ndim or fake.dtype not in _DTYPES or target in _COMPARES:
        return []
    if target in _FILLS:
        return [(result, _filled(_FILLS[target], fake.dtype))]
    function, position = _COMPUTES[target]
    if function in _ROUNDING and fake.dtype in _FLOATS:
        return []
    taken = args if function is not None else args[position : position + 1]
    operands = [_operand(tx, arg, fake.dtype, casts=function is None) for arg in taken]
    number = _result(tx, function, operands, fake.dtype)
    return [] if number is None or not taken else [(result, number)]


def _compared(tx: Tracer, function: Callable[..., Any], args: Args, result: TensorVariable) -> Numbers:
    """Whether a comparison holds, where torch compares in the dtype that all tensors among the operands have."""
    dtypes = {tx.graph.use(arg).dtype for arg in args if isinstance(arg, TensorVariable)}
    if len(dtypes) != 1 or dtypes.isdisjoint(_DTYPES):
        return []
    compared = _result(tx, function, [_operand(tx, arg, *dtypes, casts=False) for arg in args], torch.bool)
    return [] if compared is None else [(result, compared)]


def note(tx: Tracer, found: Iterable[tuple[TensorVariable, Number]]) -> None:
    """From now on these tensors hold these numbers."""
    for tensor, number in found:
        tx.graph.held_numbers[memory_of(tx.graph.use(tensor))] = number


def as_numbers(tx: Tracer, target: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments, where torch takes a number and reads that in a tensor, or numpy's, as the number."""
    args, kwargs = numpy_numbers.plain_arguments(tx, target, args, kwargs)
    names = _SCALED.get(target, ("alpha",))
    found = {name: read(tx, arg) for name in names if isinstance(arg := kwargs.get(name), TensorVariable)}
    given = {name: number for name, number in found.items() if number is not None}
    place = _FILLED.get(target, len(args))
    filled = args[place] if place < len(args) else None
    number = read(tx, filled) if isinstance(filled, TensorVariable) else None
    if number is not None:
        args = [*args[:place], number, *args[place + 1 :]]
    return args, {**kwargs, **given} if given else kwargs


def as_sizes(tx: Tracer, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
    """The arguments, with the integers that tensors hold in the place of these, as torch reads sizes and positions in
    them; None where there are none."""
    values = [*kwargs.values()]
    taken, named = _as_sizes(tx, args), _as_sizes(tx, values)
    return None if taken is args and named is values else (taken, dict(zip(kwargs, named)))


def _as_sizes(tx: Tracer, args: Args) -> Args:
    """The arguments themselves where nothing is read in them."""
    found = [_as_size(tx, arg) for arg in args]
    return args if all(one is other for one, other in zip(found, args)) else found


def _as_size(tx: Tracer, arg: VariableTracker) -> VariableTracker:
    if isinstance(arg, TensorVariable) and tx.graph.use(arg).dtype is torch.int64:
        return read(tx, arg) or arg
    if isinstance(arg, SliceVariable):
        ends = [arg.start, arg.stop, arg.step]
        taken = _as_sizes(tx, ends)
        return arg if taken is ends else SliceVariable(*taken)
    if not isinstance(arg, SequenceVariable) or arg.cls not in (tuple, list):
        return arg
    taken = _as_sizes(tx, arg.items)
    if taken is arg.items:
        return arg
    return TupleVariable([*taken]) if arg.cls is tuple else ListVariable([*taken])


# Keywords that are numbers.
_SCALED: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys(("addcdiv_", "addcmul_", "addcdiv", "addcmul", torch.addcdiv, torch.addcmul), ("alpha", "value")),
    **dict.fromkeys((torch.full, torch.full_like, "new_full"), ("fill_value",)),
}
# Places of numbers that tensors are filled with.
_FILLED: dict[Any, int] = {torch.full: 1, torch.full_like: 1, "new_full": 2}

# operations in place -> what they do to the number (None: they replace it), and whether to each of a list
_WRITES: dict[Any, tuple[Callable[..., Any] | None, bool]] = {
    operator.iadd: (operator.add, False),
    operator.isub: (operator.sub, False),
    operator.imul: (operator.mul, False),
    "add_": (operator.add, False),
    "mul_": (operator.mul, False),
    "copy_": (None, False),
    "fill_": (None, False),
    "zero_": (None, False),
    foreach_add_: (operator.add, True),
    foreach_mul_: (operator.mul, True),
    foreach_copy_: (None, True),
}
# functions that make tensors -> what is in them
_FILLS: dict[Any, float] = {
    **dict.fromkeys((torch.zeros, torch.zeros_like, "new_zeros"), 0.0),
    **dict.fromkeys((torch.ones, torch.ones_like, "new_ones"), 1.0),
}
_ROUNDING = (operator.floordiv, operator.mod)
_COMPARES = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
# functions that compute tensors -> what they do to the numbers (None: they take one as it is), and where that is
_COMPUTES: dict[Any, tuple[Callable[..., Any] | None, int]] = {
    **dict.fromkeys((torch.tensor, torch.as_tensor, torch.clone, "clone"), (None, 0)),
    torch.full: (None, 1),
    **{function: (function, 0) for function in (operator.neg, operator.add, operator.sub, operator.mul)},
    operator.truediv: (operator.truediv, 0),
    operator.floordiv: (operator.floordiv, 0),
    operator.mod: (operator.mod, 0),
    torch.div: (operator.floordiv, 0),  # of integers it gives some only with a way to round them
}
