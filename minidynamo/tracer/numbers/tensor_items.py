"""Owns the numbers in tensors with a single element that Python can compute before the graph runs: `item()` while
tracing.

Python can read the number of an external CPU tensor before the graph runs. Each operation of the graph on the tensor is
repeated on the number, rounded as the tensor rounds: `step += 1` of an optimizer. So numbers that a program computes
from it stay symbolic (`arithmetic.py`), also as sizes of new tensors, and branches on them are guarded. No number is
computed or guarded before the program reads it. After a write by an operation that is not in the tables below, the
number is unknown.

Also marks the symbolic numbers that a torch function takes as scalar arguments of its graph node. The table of
functions is not here (`minidynamo/graph/scalar_arguments.py`).
"""

from __future__ import annotations

import ctypes
import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from minidynamo.compat import foreach_add_, foreach_copy_, foreach_mul_, known_constant, memory_of, owns_its_memory
from minidynamo.graph.scalar_arguments import operator_of, scalar_arguments_of
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant, TensorNumber
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.graph.output_graph import Number
from minidynamo.tracer.numbers import arithmetic, numpy_numbers
from minidynamo.tracer.numbers.arithmetic import involves_number, require, value_here
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import ListVariable, SequenceVariable, SliceVariable, TupleVariable
from minidynamo.variables.tensors import ItemVariable, TensorVariable

Args = Sequence[VariableTracker]
Kwargs = Mapping[str, VariableTracker]
# Tensors with their numbers.
Numbers = list[tuple[TensorVariable, Number]]
_Read = Callable[[Tracer, TensorVariable], VariableTracker | None]

_FLOATS = (torch.float32, torch.float64)
_DTYPES = (*_FLOATS, torch.int64)
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)  # an index of uint8 is a mask
_DEEPEST = 50  # most operations on a number: they are written as a single expression
_LARGEST = 2**62  # the next sum or difference still fits into int64
_FLOAT32 = Constant(ctypes.c_float, "c_float")
_OWNS = Constant(owns_its_memory, "owns_its_memory")


def read(tx: Tracer, tensor: TensorVariable) -> VariableTracker | None:
    """Returns the number that a tensor holds at this point of the program; None if only the graph computes it."""
    number = _number_in(tx, tensor)
    return None if number is None else number()


def _number_in(tx: Tracer, tensor: TensorVariable) -> Number | None:
    """Returns the number in a tensor now, to be read later, independent of later writes to the tensor."""
    fake = tx.graph.use(tensor)
    if fake.ndim or fake.device.type != "cpu" or fake.layout is not torch.strided:
        return None
    if fake.dtype not in (*_DTYPES, torch.bool):
        return None
    known = known_constant(fake)
    if known is not None:
        return _always(ConstantVariable(known.item()))
    if fake.untyped_storage().nbytes() != fake.itemsize:
        return None
    memory = memory_of(fake)

    @functools.cache
    def initial() -> VariableTracker | None:
        return _initial_number(tx, tensor, is_written=tx.graph.tensor_numbers[memory] is not initial)

    return tx.graph.tensor_numbers.setdefault(memory, initial)


def _initial_number(tx: Tracer, tensor: TensorVariable, *, is_written: bool) -> VariableTracker | None:
    """Returns the number that an external tensor holds at the start of the frame, if Python can read it before the
    graph runs.

    An int is a constant, as an int of Python is, until it has varied or if the frame `is_written` the tensor: layers
    keep strides and kernel sizes in buffers."""
    real = tx.graph.real(tensor)
    if real is None or tensor.source is None or tx.graph.subgraph is not None or not owns_its_memory(real):
        return None
    tx.graph.shapes.require(Computed("{0}({1})", (_OWNS, tensor.source)), True)
    source = TensorNumber(tensor.source)
    if real.dtype is torch.bool:
        tx.guard(source, GuardKind.EQUALS, real.item())
        return ConstantVariable(real.item())
    if real.dtype in _FLOATS:
        return tx.graph.floating(real.item(), source)
    value = int(real.item())
    number: VariableTracker
    if tx.graph.shapes.varies(source, value) or is_written:
        number = tx.graph.integer(value, source)
    else:
        read = tx.graph.guard_on_read(source, GuardKind.EQUALS, value)
        number = ConstantVariable(value, source=source, on_read=read)
    return number if _guard_between(tx, number, -_LARGEST, _LARGEST) else None


def _filled(value: float, dtype: torch.dtype) -> Number:
    """Returns the number in a tensor of this dtype filled with `value`."""
    return _always(ConstantVariable(torch.tensor(value, dtype=dtype, device="cpu").item()))


def _always(number: VariableTracker) -> Number:
    return lambda: number


def _operand(tx: Tracer, variable: VariableTracker, dtype: torch.dtype, *, casts: bool) -> Number | None:
    """Returns the operand of an operation in `dtype`. Unless the operation `casts`, tensors must have that dtype."""
    if isinstance(variable, TensorVariable):
        number, own_dtype = _number_in(tx, variable), tx.graph.use(variable).dtype
        widens = own_dtype is torch.int64 and dtype in _FLOATS  # as torch does before it computes
        return number if own_dtype is dtype else _to_be_rounded(tx, number, dtype) if casts or widens else None
    if isinstance(variable, ItemVariable):
        return None
    kinds = (int, float) if casts or dtype in _FLOATS else (int,)
    return _to_be_rounded(tx, _always(variable), dtype) if variable.python_type in kinds else None


def _to_be_rounded(tx: Tracer, number: Number | None, dtype: torch.dtype) -> Number | None:
    if number is None:
        return None
    return _ComputedNumber(lambda: None if (value := number()) is None else _rounded(tx, value, dtype), _depth(number))


def _rounded(tx: Tracer, number: VariableTracker, dtype: torch.dtype) -> VariableTracker | None:
    """Returns a number, rounded as a tensor of this dtype rounds."""
    if dtype is torch.bool:
        return ConstantVariable(tx.truth(number))
    if dtype is torch.int64 and not _guard_between(tx, number, -_LARGEST, _LARGEST):
        return None
    if isinstance(number, ConstantVariable):
        return ConstantVariable(torch.tensor(number.value, dtype=dtype, device="cpu").item())
    cls = float if dtype in _FLOATS else int
    if isinstance(number, NumberVariable) and number.cls is not cls:
        if not _guard_between(tx, number, -(2**53), 2**53):  # others are rounded twice
            return None
        number = tx.call(cls, [number])
    if not isinstance(number, NumberVariable) or number.source is None:
        return None
    if dtype is not torch.float32:
        return number
    return arithmetic.computed(tx, lambda value: ctypes.c_float(value).value, "{1}({0}).value", [number], _FLOAT32)


class _ComputedNumber:
    """The number in a tensor computed by `depth` operations; it is computed once, on the first read."""

    def __init__(self, compute: Number, depth: int) -> None:
        self.compute = functools.cache(compute)
        self.depth = depth

    def __call__(self) -> VariableTracker | None:
        return self.compute()


def _depth(number: Number) -> int:
    return number.depth if isinstance(number, _ComputedNumber) else 0


def _result(
    tx: Tracer, function: Callable[..., Any] | None, operands: Sequence[Number | None], dtype: torch.dtype
) -> Number | None:
    """Returns the number in the result of `function`; without a function, the first operand."""
    known = [operand for operand in operands if operand is not None]
    depth = 1 + max((_depth(operand) for operand in known), default=0)
    if len(known) < len(operands) or depth > _DEEPEST:
        return None

    def number() -> VariableTracker | None:
        values = [value for operand in known if (value := operand()) is not None]
        if len(values) < len(known) or (function is operator.truediv and not tx.truth(values[1])):
            return None  # torch returns infinity, Python raises
        if function in _TO_INTEGERS and not _guard_between(tx, values[0], 0, 2**53):
            return None  # elsewhere the result may be a negative zero
        if function in _ROUNDING and not (
            _guard_between(tx, values[0], -1, _LARGEST) and _guard_between(tx, values[1], 0, _LARGEST)
        ):
            return None  # elsewhere torch's rounding modes may differ from Python's
        return values[0] if function is None else _rounded(tx, tx.call(function, values), dtype)

    return _ComputedNumber(number, depth)


def _guard_between(tx: Tracer, number: VariableTracker, least: int, most: int) -> bool:
    """Returns whether a number is strictly between `least` and `most`, with a guard."""
    return tx.truth(tx.call(operator.gt, [number, ConstantVariable(least)])) and tx.truth(
        tx.call(operator.lt, [number, ConstantVariable(most)])
    )


# Numbers in written tensors, and in new tensors


def numbers_of_write(tx: Tracer, target: Any, args: Args, kwargs: Kwargs) -> Numbers:
    """Returns the tensors that a call is about to overwrite with numbers that Python can compute, and the numbers."""
    if target not in _WRITES or not args or not _has_no_scaling(kwargs):
        return []
    function, is_list = _WRITES[target]
    if not is_list:
        return _written_to(tx, function, args[0], args[1:])
    receivers = args[0].items if isinstance(args[0], SequenceVariable) else []
    columns = [arg.items if isinstance(arg, SequenceVariable) else [arg] * len(receivers) for arg in args[1:]]
    memories = [memory_of(tx.graph.use(v)) for v in receivers if isinstance(v, TensorVariable)]
    read = {memory_of(tx.graph.use(v)) for column in columns for v in column if isinstance(v, TensorVariable)}
    if len({*memories, *read}) < len(memories) + len(read):
        return []  # a later write could read the result of an earlier write
    pairs = zip(receivers, *columns)
    return [number for receiver, *others in pairs for number in _written_to(tx, function, receiver, others)]


def _has_no_scaling(kwargs: Kwargs) -> bool:
    """Returns whether no keyword changes the computation."""
    return all(name == "alpha" and isinstance(v, ConstantVariable) and v.value == 1 for name, v in kwargs.items())


def _written_to(tx: Tracer, function: Callable[..., Any] | None, receiver: VariableTracker, others: Args) -> Numbers:
    if not isinstance(receiver, TensorVariable) or len(others) > 1:
        return []
    dtype = tx.graph.use(receiver).dtype
    operands = [_operand(tx, other, dtype, casts=function is None) for other in others]
    if function is not None:
        operands.insert(0, _number_in(tx, receiver))
    elif not others:  # `zero_`
        operands = [_filled(0.0, dtype)]
    number = _result(tx, function, operands, dtype)
    return [] if number is None else [(receiver, number)]


def numbers_of_result(tx: Tracer, target: Any, args: Args, result: VariableTracker) -> Numbers:
    """Returns the new tensor of a call and its number, if Python can compute the number."""
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
    if (function in _ROUNDING and fake.dtype in _FLOATS) or (function in _TO_INTEGERS and fake.dtype is torch.int64):
        return []
    read = args if function is not None else args[position : position + 1]
    operands = [_operand(tx, arg, fake.dtype, casts=function is None) for arg in read]
    number = _result(tx, function, operands, fake.dtype)
    return [] if number is None or not read else [(result, number)]


def _compared(tx: Tracer, function: Callable[..., Any], args: Args, result: TensorVariable) -> Numbers:
    """Returns the result of a comparison and its number, if all tensors among the operands have the same dtype: torch
    compares in that dtype."""
    dtypes = {tx.graph.use(arg).dtype for arg in args if isinstance(arg, TensorVariable)}
    if len(dtypes) != 1 or dtypes.isdisjoint(_DTYPES):
        return []
    compared = _result(tx, function, [_operand(tx, arg, *dtypes, casts=False) for arg in args], torch.bool)
    return [] if compared is None else [(result, compared)]


def record(tx: Tracer, found: Iterable[tuple[TensorVariable, Number]]) -> None:
    """Records that these tensors hold these numbers from now on."""
    for tensor, number in found:
        tx.graph.tensor_numbers[memory_of(tx.graph.use(tensor))] = number


def as_numbers(tx: Tracer, target: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Returns the arguments, with numbers in place of tensors and numpy scalars that torch would read as a number."""
    args, kwargs = numpy_numbers.python_arguments(tx, target, args, kwargs)
    names = _NUMBER_KEYWORDS.get(target, ("alpha",))
    found = {name: read(tx, arg) for name in names if isinstance(arg := kwargs.get(name), TensorVariable)}
    numbers = {name: number for name, number in found.items() if number is not None}
    position = FILLED.get(target, len(args))
    filled = args[position] if position < len(args) else None
    number = read(tx, filled) if isinstance(filled, TensorVariable) else None
    if number is not None:
        args = [*args[:position], number, *args[position + 1 :]]
    return args, {**kwargs, **numbers} if numbers else kwargs


def as_sizes(tx: Tracer, args: Args, kwargs: Kwargs, read: _Read) -> tuple[Args, Kwargs] | None:
    """Returns the arguments, with integers in place of the tensors that torch would read as sizes and positions.

    `read` returns the number in a tensor, if it is known before the graph. None if no argument changes."""
    values = [*kwargs.values()]
    positional, named = _as_sizes(tx, args, read), _as_sizes(tx, values, read)
    return None if positional is args and named is values else (positional, dict(zip(kwargs, named)))


def _as_sizes(tx: Tracer, args: Args, read: _Read) -> Args:
    """Returns the arguments; the same object if no argument changes."""
    found = [_as_size(tx, arg, read) for arg in args]
    return args if all(map(operator.is_, found, args)) else found


def _as_size(tx: Tracer, arg: VariableTracker, read: _Read) -> VariableTracker:
    if isinstance(arg, TensorVariable) and tx.graph.use(arg).dtype in _INTEGERS:
        return read(tx, arg) or arg
    if isinstance(arg, SliceVariable):
        bounds = [arg.start, arg.stop, arg.step]
        sizes = _as_sizes(tx, bounds, read)
        return arg if sizes is bounds else SliceVariable(*sizes)
    if not isinstance(arg, SequenceVariable) or arg.cls not in (tuple, list):
        return arg
    sizes = _as_sizes(tx, arg.items, read)
    if sizes is arg.items:
        return arg
    return TupleVariable([*sizes]) if arg.cls is tuple else ListVariable([*sizes])


# Keywords that are numbers.
_NUMBER_KEYWORDS: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys(("addcdiv_", "addcmul_", "addcdiv", "addcmul", torch.addcdiv, torch.addcmul), ("alpha", "value")),
    **dict.fromkeys((torch.full, torch.full_like, "new_full"), ("fill_value",)),
}
# Functions that fill a tensor -> position of the number.
FILLED: dict[Any, int] = {torch.full: 1, torch.full_like: 1, "new_full": 2}

# In-place operations -> (operation on the number, or None for an assignment; whether it takes lists).
_WRITES: dict[Any, tuple[Callable[..., Any] | None, bool]] = {
    **dict.fromkeys((operator.iadd, "add_"), (operator.add, False)),
    **dict.fromkeys((operator.imul, "mul_"), (operator.mul, False)),
    **dict.fromkeys(("copy_", "fill_", "zero_"), (None, False)),
    operator.isub: (operator.sub, False),
    foreach_add_: (operator.add, True),
    foreach_mul_: (operator.mul, True),
    foreach_copy_: (None, True),
}
# Functions that fill a new tensor -> the number in it.
_FILLS: dict[Any, float] = {
    **dict.fromkeys((torch.zeros, torch.zeros_like, "new_zeros"), 0.0),
    **dict.fromkeys((torch.ones, torch.ones_like, "new_ones"), 1.0),
}
_ROUNDING = (operator.floordiv, operator.mod)
_TO_INTEGERS = (math.ceil, math.floor)
_COMPARES = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
# Functions that compute tensors -> (operation on the numbers, or None for a copy; position of the copied number).
_COMPUTES: dict[Any, tuple[Callable[..., Any] | None, int]] = {
    **dict.fromkeys((torch.tensor, torch.as_tensor, torch.clone, "clone", "to", "long"), (None, 0)),
    **dict.fromkeys((torch.ceil, "ceil"), (math.ceil, 0)),
    **dict.fromkeys((torch.floor, "floor"), (math.floor, 0)),
    torch.full: (None, 1),
    **{function: (function, 0) for function in (operator.neg, operator.add, operator.sub, operator.mul)},
    **{function: (function, 0) for function in (operator.truediv, *_ROUNDING)},
    torch.div: (operator.floordiv, 0),  # on integers it returns integers only with a rounding mode
}


def mark_scalar_arguments(tx: Tracer, target: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Returns the arguments, with a mark on each scalar argument that may vary. Others are specialized later."""
    known = scalar_arguments_of(target)
    if known is None or not any(map(involves_number, (*args, *kwargs.values()))):
        return args, kwargs
    out = kwargs.get("out")
    if out is not None and not (isinstance(out, ConstantVariable) and out.value is None):
        return args, kwargs
    op = operator_of(target)
    if op is not None and not tx.graph.infers_symbolic_floats(op, args, kwargs):
        return args, kwargs
    tensors = [v.fake for v in known.named(args, kwargs).values() if isinstance(v, TensorVariable)]

    def marked(name: str, argument: VariableTracker) -> VariableTracker:
        if isinstance(argument, ListVariable | TupleVariable) and name in known.numbers:
            return replace(argument, items=[marked(name, item) for item in argument.items])
        if not isinstance(argument, NumberVariable) or not known.varies(name, argument.cls is int, tensors):
            return argument
        if _guard_condition(tx, known.condition, argument):
            return replace(argument, is_scalar_argument=True)
        return _specialize_exception(tx, argument)

    named = [marked(name, argument) for name, argument in zip(known.names, args)]
    return [*named, *args[len(named) :]], {name: marked(name, argument) for name, argument in kwargs.items()}


def _guard_condition(tx: Tracer, condition: str, number: NumberVariable) -> bool:
    """Returns whether the operation is the same for this number; the condition is guarded."""
    return not condition or (
        bool(eval(condition.format("n"), {}, {"n": value_here(number)})) and require(tx, condition, True, number)
    )


def _specialize_exception(tx: Tracer, number: NumberVariable) -> VariableTracker:
    """Specializes a float for which torch runs a different operation: 0 or 1."""
    here = number.unguarded_value
    is_exception = number.cls is float and here in (0, 1)
    return ConstantVariable(here) if is_exception and require(tx, f"{{0}} == {here!r}", True, number) else number
