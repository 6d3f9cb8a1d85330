"""Owns unbacked symbols, numbers read from tensors in graphs that are traced without data; and subscripts of tensors by
tensors of one integer: `x[i]` is the view `x[i.item()]`.

Numbers that are known before a graph runs are not unbacked. Without data, all indices give equivalent views:
`with_first_indices` chooses index 0. If the numbers are symbols, which torch accepts in no subscript,
`run_with_indices` selects dimension by dimension. With data, `checked_index` reads and checks the number.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.compat import known_constant


def unbacked_symbol(env: Any, below: Any) -> torch.SymInt:
    """Creates an unbacked symbol in a ShapeEnv, at least 0, and less than `below` unless that is None."""
    with env.ignore_fresh_unbacked_symbols():
        number: torch.SymInt = env.create_unbacked_symint()
    _expect(number >= 0)
    if below is not None:
        _expect(number < below)
    return number


def unbacked_number(env: Any, cls: type) -> torch.SymInt | torch.SymFloat:
    """Creates an unbacked symbol for any int or float."""
    with env.ignore_fresh_unbacked_symbols():
        number: torch.SymInt | torch.SymFloat = (
            env.create_unbacked_symint() if cls is int else env.create_unbacked_symfloat()
        )
    return number


def backed_number(env: Any, cls: type) -> torch.SymInt | torch.SymFloat:
    """Creates a symbol for any int or float, with an arbitrary value: stages after capture ask for values in estimates.

    The caller checks `fixes_any` when the stages have ended.
    """
    shapes, value = compat.symbolic(), 5 if cls is int else 0.7310585
    source = shapes.NamedSource(f"item_{next(_numbers)}")
    symbol = env.create_unspecified_symbol(value, source, shapes.DimDynamic.DYNAMIC)
    make = env.create_symintnode if cls is int else env.create_symfloatnode
    number: torch.SymInt | torch.SymFloat = make(symbol, hint=value)
    return number


_numbers = itertools.count()


def fixes_any(numbers: Sequence[torch.SymInt | torch.SymFloat]) -> bool:
    """Returns whether a condition on one of the numbers was decided, and removes these decisions from the ShapeEnv."""
    fixed = False
    for env in {number.node.shape_env for number in numbers}:
        symbols = {number.node._expr for number in numbers}
        decisions = [guard for guard in env.guards if not symbols.isdisjoint(guard.expr.free_symbols)]
        fixed |= bool(decisions)
        for decision in decisions:
            env.guards.remove(decision)
        if decisions:
            compat.forget_short_forms(env)
    return fixed


def _expect(condition: Any) -> None:
    if isinstance(condition, torch.SymBool):
        condition.node.expect_true(__file__, 0)


def depends_on_data(value: Any) -> bool:
    """Returns whether `value` is computed from an unbacked symbol."""
    return isinstance(value, compat.SYMBOLIC_NUMBERS) and bool(_unbacked_symbols(value))


def hint_of(number: Any) -> int:
    """Returns the value of a number in the compiled call, with 0 for each unbacked symbol.

    The result is approximate: it may decide a layout, an order or an estimate of costs, and never a value. Each call
    states its use. A number that decides a value is an input of the graph, or is read when the graph runs.
    """
    if not isinstance(number, compat.SYMBOLIC_NUMBERS):
        return int(number)
    node = number.node
    if node.hint is None:
        zero = dict.fromkeys(_unbacked_symbols(number), compat.symbolic().Integer(0))
        node = type(node)(node.expr.xreplace(zero), node.shape_env, int, None)
    return int(node.hint)


def has_unbacked_layout(value: Any) -> bool:
    """Returns whether a size, stride or offset of a tensor is computed from an unbacked symbol."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return any(map(depends_on_data, (*value.shape, *value.stride(), value.storage_offset())))


def _unbacked_symbols(number: Any) -> list[Any]:
    """Lists the unbacked symbols in the expression of a number."""
    node = number.node
    return [symbol for symbol in node.expr.free_symbols if compat.symbolic().is_unbacked(symbol)]


_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)  # uint8, like bool, is a mask
_MASKS = (torch.bool, torch.uint8)
_ALL = slice(None)

SUBSCRIPTS = (operator.getitem, operator.setitem)
"""The functions that read or write elements of a tensor chosen by a subscript."""

IndexReader = Callable[[torch.Tensor, Any, int], Any]
"""Returns the number in an index tensor, for a dimension of a given size; the last argument is the position in the
subscript.
"""


def with_first_indices(target: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Returns the arguments of a call, with index 0 for each index tensor, if the call is a subscript by index
    tensors.
    """
    if not _has_index_tensors(target, args):
        return args
    items = _items(args[1])
    return [args[0], tuple(0 if _is_index_tensor(item) else item for item in items), *args[2:]]


def has_index_tensors(node: torch.fx.Node) -> bool:
    """Returns whether a node of a torch-level graph is a subscript by index tensors."""
    args = torch.fx.map_arg(node.args, lambda operand: operand.meta.get("example_value", operand))
    return _has_index_tensors(node.target, args)


def run_with_indices(target: Any, args: Sequence[Any], read: IndexReader) -> Any:
    """Returns the result of a subscript by index tensors, or NotImplemented for other calls.

    Items that make views are applied from left to right, as in torch; other tensors in the subscript are applied last.
    """
    if not _has_index_tensors(target, args):
        return NotImplemented
    part, *value = args[0], *args[2:]
    basic: list[Any] = []
    selections: list[tuple[int, Any]] = []  # (dimension after the earlier selections, index)
    rest: list[Any] = []  # subscript of the dimensions that remain
    kept = 0  # dimensions of `part` before the item that remain after the selections
    for position, (item, (dim, end)) in enumerate(zip(_items(args[1]), dimensions(args) or ())):
        if _is_index_tensor(item):
            basic.append(_ALL)
            selections.append((kept, read(item, part.shape[dim], position)))
        elif isinstance(item, torch.Tensor):
            basic += [_ALL] * (end - dim)
            rest.append(item)
            kept += end - dim
        else:
            basic.append(item)
            more = 1 if item is None else 0 if isinstance(item, (int, torch.SymInt)) else end - dim
            rest += [_ALL] * more
            kept += more
    if any(item is not ... and item != _ALL for item in basic):
        part = part[tuple(basic)]
    for dim, number in selections:
        part = part.select(dim, number)
    key = ... if all(item is _ALL for item in rest) else tuple(rest)
    if target is operator.setitem:
        return operator.setitem(part, key, *value)
    return part if key is ... else part[key]


def checked_index(index: torch.Tensor, size: int, position: int) -> int:
    """Returns the number in an index tensor, counted from 0. Raises IndexError if it is out of range."""
    number = int(index)
    if not -size <= number < size:  # torch's message, with the position as the dimension
        raise IndexError(f"index {number} is out of bounds for dimension {position} with size {size}")
    return number + size if number < 0 else number


def dimensions(args: Sequence[Any]) -> list[tuple[int, int]] | None:
    """Lists the range of dimensions of each item of a subscript; None if unknown."""
    taken = [None if item is ... else _taken(item) for item in _items(args[1])]
    rest = args[0].dim() - sum(number for number in taken if number is not None)
    if taken.count(None) > 1 or -1 in taken or rest < 0:
        return None
    ends = list(itertools.accumulate(rest if number is None else number for number in taken))
    return list(zip([0, *ends], ends))


def _has_index_tensors(target: Any, args: Sequence[Any]) -> bool:
    """Returns whether a call is a subscript by index tensors that is supported here; torch handles all others."""
    if target not in SUBSCRIPTS or not isinstance(args[0], torch.Tensor) or args[0].layout is not torch.strided:
        return False
    return any(map(_is_index_tensor, _items(args[1]))) and dimensions(args) is not None


def _items(key: Any) -> Sequence[Any]:
    return key if isinstance(key, tuple) else (key,)


def _is_index_tensor(item: Any) -> bool:
    """Returns whether torch reads the number of an index tensor at run time. A fake tensor may know its constant
    value.
    """
    if not isinstance(item, torch.Tensor) or item.dim() or item.dtype not in _INTEGERS:
        return False
    return item.layout is torch.strided and known_constant(item) is None


def _taken(item: Any) -> int:
    """Returns the number of dimensions that an item of a subscript consumes; -1 if unknown."""
    if isinstance(item, torch.Tensor):
        return 1 if item.dtype not in _MASKS else item.dim() or -1
    if isinstance(item, slice):
        return -1 if any(isinstance(part, torch.Tensor) for part in (item.start, item.stop, item.step)) else 1
    return 0 if item is None else 1 if type(item) in (int, torch.SymInt) else -1
