"""Owns numbers that the graph reads from tensors: `item()`, `tolist()`, `int(t)`, `float(t)`, and numbers that the
program computes from them.

No value is known while tracing. Python's own functions compute with these numbers when the graph runs, so results have
Python's classes, precision and errors. A function is recorded if its result has the same class for all numbers. The
program may return and store the numbers, and operations on tensors may take them. If Python decides by a number, the
graph breaks. Numbers that Python reads before the graph are not here (`tensor_items.py`, `early_reads.py`,
`data_sizes.py`).
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.graph.marks import FROM_DATA
from minidynamo.graph.scalar_arguments import scalar_arguments_of
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.numbers import early_reads, tensor_items
from minidynamo.tracer.records.constants import from_constant
from minidynamo.tracer.records.operator_table import ARITHMETIC, BITWISE, COMPARISONS
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import ListVariable, SequenceVariable, SliceVariable, TupleVariable
from minidynamo.variables.tensors import ItemVariable, TensorVariable

Args = Sequence[VariableTracker]
Kwargs = Mapping[str, VariableTracker]

_READERS: dict[str, type | None] = {"item": None, "tolist": None, "__int__": int, "__float__": float}
_WHY = "The number is known only when the graph runs."


def read(tx: Tracer, tensor: TensorVariable, name: str) -> VariableTracker | None:
    """Returns the result of a method that reads a tensor's numbers in the graph; None if the graph must break."""
    fake = tx.graph.use(tensor)
    cls = class_in(fake)
    if name not in _READERS or cls is None or tx.graph.subgraph is not None:
        return None
    if cls is bool and tx.graph.may_break:  # bools are read for decisions, perhaps in many callees
        return None
    result_cls = _READERS[name] or cls
    early = early_reads.read(tx, tensor, name) if cls is int else None
    if early is not None:
        return early if result_cls is int else tx.call(result_cls, [early])
    sizes = _known_sizes(fake)
    if sizes is None and name == "tolist" and cls is int and not tx.graph.may_break:
        early_reads.request_list(tx, tensor)
    if name == "tolist" and fake.dim():
        is_short = sizes is not None and 0 < math.prod(sizes) <= early_reads.MOST_ITEMS
        return _lists(tx, tensor, sizes, cls) if sizes is not None and is_short else None
    warns = _READERS[name] is not None and fake.requires_grad  # torch's warning names the caller's line
    if warns or sizes is None or math.prod(sizes) != 1:
        return None
    number = tx.graph.item("item", [tensor], cls)
    early_reads.record(tx, number)
    return number if result_cls is cls else call(tx, result_cls, [number], {})


def class_in(fake: torch.Tensor) -> type | None:
    """Returns the class of `item()` of a tensor; None for tensors whose numbers are not read in the graph."""
    if fake.layout is not torch.strided or fake.dtype.is_complex or fake.is_quantized or fake.dtype is torch.uint64:
        return None
    return bool if fake.dtype is torch.bool else float if fake.dtype.is_floating_point else int


def _known_sizes(fake: torch.Tensor) -> list[int] | None:
    """Returns the sizes of a tensor; None if one may vary from call to call."""
    sizes = [compat.constant_of(size) if isinstance(size, torch.SymInt) else size for size in fake.shape]
    return None if None in sizes else sizes


def _lists(tx: Tracer, tensor: TensorVariable, sizes: Sequence[int], cls: type) -> VariableTracker:
    """Returns nested lists of the numbers in a tensor."""
    flat = tx.emit("flatten", [tensor])
    assert isinstance(flat, TensorVariable)
    level = tx.graph.items("tolist", flat, cls, math.prod(sizes))
    early_reads.record(tx, level[0])
    for size in reversed(sizes):
        level = [ListVariable(level[start : start + size]) for start in range(0, len(level), size)]
    return level[0]


# Computation


def involves_item(variable: VariableTracker) -> bool:
    """Returns whether the value is a number of the graph, or a tuple, list or slice with one in it."""
    if isinstance(variable, SequenceVariable):
        return any(map(involves_item, variable.items))
    if isinstance(variable, SliceVariable):
        return any(isinstance(part, ItemVariable) for part in (variable.start, variable.stop, variable.step))
    return isinstance(variable, ItemVariable)


def call(tx: Tracer, function: Any, args: Args, kwargs: Kwargs) -> VariableTracker | None:
    """Records a function of numbers of the graph; None for other functions and arguments."""
    if not tx.graph.has_items or not args or kwargs:
        return None
    if function is operator.mod and args[0].python_type is str and involves_item(args[-1]):
        tx.break_graph("MD234", "the text of a number that the graph reads from a tensor", why=_WHY, fix=_TEXT)
    if any(function is constructor for constructor in _TENSORS):
        return _tensor(tx, args)
    if not any(isinstance(arg, ItemVariable) for arg in args):
        return None
    if any(arg.python_type not in (int, float, bool, complex) for arg in args) or not _is_hashable(function):
        return None
    function = _PLAIN.get(function, function)
    if function in (operator.pos, int, float, bool) and args[0].python_type in (_CONVERSIONS.get(function), None):
        return args[0] if len(args) == 1 else None
    cls = _class_of_result(function, args)
    if cls is None and (function in _REFUSED or getattr(function, "__module__", "") in ("math", "_operator")):
        what = f"{getattr(function, '__name__', 'a function')}() of a number that the graph reads from a tensor"
        tx.break_graph("MD230", what, why=f"{_WHY} The class of the result may depend on it.", fix=_KEEP)
    return None if cls is None else _record(tx, function, args, cls, _may_raise(function, args))


def _record(tx: Tracer, function: Callable[..., Any], args: Args, cls: type, may_raise: bool) -> VariableTracker:
    if may_raise:
        tx.record_handlers()
    return tx.graph.item(function, args, cls, may_raise=may_raise)


def total(tx: Tracer, numbers: TupleVariable, start: VariableTracker) -> VariableTracker | None:
    """Returns `sum` of numbers, at least one of the graph; None for anything else."""
    items = [*numbers.items, start]
    classes = {item.python_type for item in items}
    if not tx.graph.has_items or not any(map(involves_item, items)) or not classes <= {int, float, bool}:
        return None
    # Python's own `sum` is called, because it compensates rounding errors of floats from 3.12 on.
    return _record(tx, sum, [numbers, start], float if float in classes else int, classes != {float})


def extreme(tx: Tracer, function: Callable[..., Any], best: VariableTracker, item: VariableTracker) -> Any:
    """Returns `min` or `max` of two numbers of the same class; None for all else."""
    is_same = best.python_type is item.python_type and best.python_type in (int, float, bool)
    if not is_same or not (isinstance(best, ItemVariable) or isinstance(item, ItemVariable)):
        return None
    return tx.graph.item(function, [best, item], best.python_type)


def choice(
    tx: Tracer, function: Callable[..., Any], best: VariableTracker, item: VariableTracker, is_better: VariableTracker
) -> VariableTracker | None:
    """Returns `min` or `max` of two tensors of one element with equal facts: the graph returns the object itself.

    None if the answer is known, or facts of the result depend on it."""
    operands = [each for each in (best, item) if isinstance(each, TensorVariable) and each.cls is torch.Tensor]
    if len(operands) < 2 or best is item or tx.graph.subgraph is not None:
        return None
    fakes = [tx.graph.use(operand) for operand in operands]
    if any(fake.layout is not torch.strided or fake.numel() != 1 for fake in fakes):
        return None
    facts = [(f.dtype, f.device, f.shape, f.stride(), f.requires_grad) for f in fakes]
    if facts[0] != facts[1]:
        return None
    compared = tx.call(is_better, [item, best])
    if not isinstance(compared, TensorVariable) or tx.graph.constant(compared) is not None:
        return None
    if tensor_items.read(tx, compared) is not None:
        return None
    return tx.graph.choice(function, operands, fakes[0].requires_grad)


def is_choice(variable: VariableTracker) -> bool:
    """Returns whether a tensor is the result of `min` or `max` of tensors: one of several objects."""
    return isinstance(variable, TensorVariable) and FROM_DATA in variable.node.meta


def _is_hashable(function: Any) -> bool:
    return getattr(function, "__hash__", None) is not None


def _class_of_result(function: Callable[..., Any], args: Args) -> type | None:
    """Returns the class of the result for all values of the numbers; None if it depends on them."""
    classes = [arg.python_type for arg in args]
    if complex in classes:
        return None
    if len(args) == 2 and function in _COMPARISONS:
        return bool
    if len(args) == 2 and function in _ARITHMETIC:
        return float if float in classes or function is operator.truediv else int
    if len(args) == 2 and function in _BITS and float not in classes:
        return bool if classes == [bool, bool] and function in (operator.and_, operator.or_, operator.xor) else int
    if len(args) == 2 and function is operator.pow:
        return _class_of_power(*args)
    if function is round and classes == [float, int]:
        return float
    known = _OF_ONE.get(function) if len(args) == 1 else float if len(args) == 2 and function in _OF_TWO else None
    if known is not None or len(args) > 1:
        return known
    keeps = function in (operator.neg, operator.pos, abs) or (function is operator.invert and float not in classes)
    return (int if classes[0] is bool else classes[0]) if keeps else None


def _class_of_power(base: VariableTracker, exponent: VariableTracker) -> type | None:
    """Returns the class of a power; it is complex for some negative bases, and a float for negative whole exponents."""
    known = exponent.value if isinstance(exponent, ConstantVariable) else None
    if known is not None and base.python_type is not float and exponent.python_type is int:
        return int if known >= 0 else float
    if base.python_type is float and (
        exponent.python_type in (int, bool) or (known is not None and known == known // 1)
    ):
        return float
    positive = isinstance(base, ConstantVariable) and base.value > 0
    return float if positive and float in (base.python_type, exponent.python_type) else None


def _may_raise(function: Callable[..., Any], args: Args) -> bool:
    """Returns whether Python raises an error for some numbers."""
    if function in _COMPARISONS or function in _NEVER_RAISE:
        return False
    is_float = all(arg.python_type is float for arg in args)
    if function in (operator.truediv, operator.floordiv, operator.mod) and isinstance(args[1], ConstantVariable):
        return not (is_float and args[1].value != 0)
    return not (is_float and function in (operator.add, operator.sub, operator.mul))


def _tensor(tx: Tracer, args: Args) -> VariableTracker | None:
    """Returns a tensor with one number. A float that is too large becomes infinite; `torch.full` would raise."""
    if len(args) != 1 or not isinstance(args[0], ItemVariable) or args[0].cls is bool:
        return None
    dtype = torch.int64 if args[0].python_type is int else torch.float64
    full = tx.emit(torch.full, [TupleVariable([]), args[0]], {"dtype": from_constant(dtype)})
    if dtype is torch.int64 or torch.get_default_dtype() is torch.float64:
        return full
    return tx.emit("to", [full, from_constant(torch.get_default_dtype())])


_COMPARISONS = frozenset(COMPARISONS.values())
_ARITHMETIC = frozenset(ARITHMETIC.values()) - {operator.matmul, operator.pow}
_BITS = frozenset(BITWISE.values())
_CONVERSIONS: dict[Any, type] = {int: int, float: float, bool: bool}
_PLAIN: dict[Any, Any] = {operator.abs: abs, operator.truth: bool, torch.sym_int: int, torch.sym_float: float}
_OF_ONE: dict[Any, type] = {
    **dict.fromkeys((builtins.int, round, math.floor, math.ceil, math.trunc), int),
    **dict.fromkeys((math.isnan, math.isinf, math.isfinite, builtins.bool, operator.not_), bool),
    **dict.fromkeys(
        (builtins.float, math.sqrt, math.exp, math.expm1, math.exp2, math.log, math.log2, math.log10), float
    ),
    **dict.fromkeys((math.log1p, math.sin, math.cos, math.tan, math.tanh, math.atan, math.sinh, math.cosh), float),
    **dict.fromkeys((math.fabs, math.erf, math.erfc, math.asin, math.acos, math.degrees, math.radians), float),
}
_OF_TWO = frozenset((math.pow, math.atan2, math.copysign, math.fmod, math.hypot, math.log))
_TENSORS = (torch.tensor, torch.as_tensor, torch.scalar_tensor)
_REFUSED = frozenset((divmod, pow, hash, round, builtins.complex))
_NEVER_RAISE: frozenset[Any] = frozenset(
    (math.isnan, math.isinf, math.isfinite, builtins.bool, operator.not_, operator.neg, operator.pos, abs, min, max)
)


# Operations on tensors


def refuse_value_dependent(tx: Tracer, target: Any, name: str, args: Args, kwargs: Kwargs) -> None:
    """Breaks the graph before an operation that torch implements differently for some values of a number."""
    arguments = [*args, *kwargs.values()]
    involves = tx.graph.has_items and any(map(involves_item, arguments))
    if involves and target in _SPLITS:
        early_reads.request(tx, arguments)
    known = scalar_arguments_of(target) if involves else None
    if known is not None and known.condition:
        named = known.named(args, kwargs)
        if any(involves_item(named[name]) for name in known.numbers if name in named):
            break_on_value(tx, name, arguments)


def break_on_value(tx: Tracer, name: str, args: Args = ()) -> None:
    """Breaks the graph where an operation on tensors needs the values of numbers, unless all numbers in `args` can be
    read before the graph."""
    early_reads.request(tx, args)
    tx.break_graph("MD230", f"{name} needs a number that the graph reads from a tensor", why=_WHY, fix=_SIZES)


# The fake implementations accept any single size, and only autograd asks for its value.
_SPLITS = (torch.split, torch.split_with_sizes, "split", "split_with_sizes")
_KEEP = "Compute with the tensor itself, and read its number at the end."
_TEXT = "Format the number after the compiled function."
_SIZES = "Keep the size fixed and mask, or pass the number to the compiled function as an argument."
