"""Owns Python's operator protocol: which special methods an operator calls, in which order, for values of any kind.

The special methods themselves are registered per type in `handlers/`, or written by the user. Constants are folded
before anything else, and an operator with a tensor among its operands is a node of the graph.
"""

from __future__ import annotations

import collections
import enum
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant
from minidynamo.tracer.attributes import MISSING, lookup_on_class
from minidynamo.tracer.calls.identity import is_the_same
from minidynamo.tracer.frames.exceptions import says, tracked, unsaid
from minidynamo.tracer.lazy import partial_reads
from minidynamo.tracer.lazy.lazy_value import realize
from minidynamo.tracer.numbers import arithmetic, formatting, numpy_numbers, tensor_items
from minidynamo.tracer.polyfills.builtins import decided
from minidynamo.tracer.polyfills.lists import same_or_equal
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import (
    NotConstant,
    as_constant,
    asks_for_members,
    below,
    from_result,
    has_own,
    involves_own,
)
from minidynamo.tracer.records.fix_hints import instead_of
from minidynamo.tracer.records.operator_table import BINARY, COMPARISONS, IN_PLACE, UNARY
from minidynamo.tracer.trace_rules import is_trusted_class, is_trusted_module
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, SequenceVariable, SliceVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ObjectVariable
from minidynamo.variables.tensors import TensorVariable

_COMPARISONS = frozenset(COMPARISONS.values())


def involves_tensor(variable: VariableTracker) -> bool:
    """Whether a tensor is the value, or an item of the tuple, list or slice that it is."""
    if isinstance(variable, TensorVariable):
        return True
    if isinstance(variable, SequenceVariable):
        return any(involves_tensor(item) for item in variable.items)
    if isinstance(variable, SliceVariable):
        return any(involves_tensor(part) for part in (variable.start, variable.stop, variable.step))
    return False


def fold(tx: Tracer, function: Callable[..., Any], *operands: VariableTracker) -> VariableTracker | None:
    """The result on constants, None when an operand is not one, or has operators of the program's own; errors are
    raised natively."""
    if any(map(involves_own, operands)):
        return None
    for name in BINARY.get(function) or (UNARY.get(function, ""),):
        for operand in operands:
            _guard_of_flag(tx, operand, name)
    return _fold(tx, function, *operands)


def _guard_of_flag(tx: Tracer, operand: VariableTracker, name: str) -> None:
    """Guard what the library has put into the class of a flag; that it has no other names is guarded already."""
    cls = operand.python_type
    if isinstance(operand, ConstantVariable) and issubclass(cls, enum.Flag) and name in vars(cls):
        tx.guard(Constant(cls, cls.__name__), GuardKind.CLASS_ATTR, (name, vars(cls)[name]))


def _fold(tx: Tracer, function: Callable[..., Any], *operands: VariableTracker) -> VariableTracker | None:
    try:
        values = [as_constant(operand) for operand in operands]
    except NotConstant:
        return None
    return folded(tx, function, operands, values, {})


def folded(
    tx: Tracer,
    function: Callable[..., Any],
    operands: Sequence[VariableTracker],
    args: list[Any],
    kwargs: dict[str, Any],
) -> VariableTracker | None:
    """The result of a pure function on plain values, those of `operands`, which are in the order of the call; None when
    no tracker can stand for it."""
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        tx.raises(tracked(error, tx.side_effects, exact=says(error)))
    try:
        return from_result(result, operands, [*args, *kwargs.values()])
    except NotConstant:
        return None


def _is_scalar(variable: VariableTracker) -> bool:
    return isinstance(variable, ConstantVariable)


def has_method(variable: VariableTracker, name: str) -> bool:
    """Whether the class of `variable` has a special method, and does not say that it is None."""
    return lookup_on_class(variable.python_type, name)[0] not in (MISSING, None)


def _takes_anything(cls: type, name: str) -> bool:
    """Whether the operator is `%` of a text, which puts anything into it, tensors too."""
    return name == "__mod__" and issubclass(cls, str | bytes | bytearray)


def _attempt(tx: Tracer, left: VariableTracker, name: str, right: VariableTracker) -> VariableTracker | None:
    """`left.name(right)`, or None when there is no such method or it answers NotImplemented."""
    if lookup_on_class(left.python_type, name)[0] is None:  # the class says that it cannot, and Python calls that
        tx.raises(TypeError("'NoneType' object is not callable"), exact=True)
    if not has_method(left, name):
        return None
    result: VariableTracker | None
    is_folded = isinstance(left, ConstantVariable) and not _takes_anything(left.python_type, name)
    if is_folded and not asks_for_members(left.python_type) and not has_own(left.python_type, name):
        # Numbers and text know nothing of what is neither.
        result = _fold(tx, getattr(left.python_type, name), left, below(right))
    else:
        result = tx.call_method(left, name, [right])
    return None if isinstance(result, ConstantVariable) and result.here is NotImplemented else result


def _binary(function: Callable[..., Any], name: str, reflected: str) -> None:
    @registry.function(function)
    def binary(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
        if isinstance(left, TensorVariable) or isinstance(right, TensorVariable):
            answer = _answer_of_an_object(tx, left, name, right) or _answer_behind(tx, left, reflected, right)
            return answer or tx.emit(function, [left, right])
        if function in (operator.eq, operator.ne) and _are_of_two_kinds(left, right):
            return ConstantVariable(function is operator.ne)
        computed = arithmetic.binary(tx, function, left, right) or formatting.combined(tx, function, left, right)
        computed = computed or numpy_numbers.combined(tx, function, left, right)
        if computed is not None:
            return computed
        if _is_scalar(left) and _is_scalar(right) and not _takes_anything(left.python_type, name):
            result = fold(tx, function, left, right)
            if result is not None:
                return result
        result = _asked_as_numbers(tx, function, left, right) or _asked_as_sequences(tx, function, left, right)
        if result is not None:
            return result
        if function in (operator.eq, operator.ne):
            return ConstantVariable(is_the_same(tx, left, right) is (function is operator.eq))
        if any(issubclass(each.python_type, _JOINED.get(function, ())) for each in (left, right)):
            tx.raises(TypeError("an operand cannot be joined"))  # asked once more than Python asks it
        tx.raises(unsaid(TypeError))


# Values of different kinds are never equal: what they are need not be known.
_KINDS: dict[type, str] = {
    **dict.fromkeys((bool, int, float, complex), "number"),
    **dict.fromkeys((set, frozenset), "set"),
    **{cls: cls.__name__ for cls in (str, bytes, tuple, list, dict, range, slice, type(None), type(...))},
}


def _are_of_two_kinds(left: VariableTracker, right: VariableTracker) -> bool:
    first, second = _KINDS.get(left.python_type), _KINDS.get(right.python_type)
    return first is not None and second is not None and first != second


def _asked_as_numbers(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """What the operands make of an operator, None for NotImplemented. Sequences are not asked to add or multiply yet,
    unless a class of the user's says what that is."""
    first, second = left.python_type, right.python_type
    name, reflected = BINARY[function]
    order = [(left, name, right)] if _is_like_a_number(first, function) else []
    # Operands of one class are not asked the other way round, except by comparisons.
    compares = function in _COMPARISONS
    if _is_like_a_number(second, function) and (first is not second or compares):
        is_first = second is not first and issubclass(second, first)
        is_first = is_first and (compares or _overrides(second, first, reflected))
        order.insert(0 if is_first else len(order), (right, reflected, left))
    joined = _JOINED.get(function, ())
    for receiver, method, other in order:
        if issubclass(other.python_type, joined) and lookup_on_class(receiver.python_type, method)[1] in _NUMBERS:
            continue  # they know nothing of sequences, whose items stay unread
        result = _attempt(tx, receiver, method, other)
        if result is not None:
            return result
        if receiver is left and lookup_on_class(first, method)[1] in joined:
            tx.raises(unsaid(TypeError))
    return None


def _asked_as_sequences(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """What sequences make of `+` and `*` after numbers have been asked."""
    name, reflected = BINARY[function]
    for receiver, method, other in ((left, name, right), (right, reflected, left)):
        if issubclass(receiver.python_type, _JOINED.get(function, ())):
            return _attempt(tx, receiver, method, other)
        if function is operator.add:
            break
    return None


_NUMBERS = (bool, int, float, complex)
# Operators of sequences -> the classes that have them as such.
_JOINED: dict[Callable[..., Any], tuple[type, ...]] = dict.fromkeys(
    (operator.add, operator.mul), (list, tuple, str, bytes, bytearray, collections.deque)
)


def _is_like_a_number(cls: type, function: Callable[..., Any]) -> bool:
    """Whether an operator asks a class as it asks numbers: all but sequences that leave it to Python's own class."""
    joined = _JOINED.get(function, ())
    owners = (lookup_on_class(cls, name)[1] for name in BINARY[function])
    return not issubclass(cls, joined) or any(owner not in (None, *joined) for owner in owners)


def _answer_of_an_object(
    tx: Tracer, obj: VariableTracker, name: str, tensor: VariableTracker
) -> VariableTracker | None:
    """What a user's object, or a text, beside a tensor makes of the operator."""
    cls = obj.python_type
    if isinstance(obj, TensorVariable) or hasattr(cls, "__torch_function__"):
        return None
    is_plain = isinstance(obj, ObjectVariable) and obj.storage is None
    is_own = isinstance(lookup_on_class(cls, name)[0], types.FunctionType)  # in a subclass of list or int, say
    return _attempt(tx, obj, name, tensor) if is_plain or is_own or _takes_anything(cls, name) else None


def _answer_behind(tx: Tracer, left: VariableTracker, reflected: str, right: VariableTracker) -> VariableTracker | None:
    """The same of an object on the right: numbers, whatever their class, the tensor takes itself."""
    if issubclass(right.python_type, (int, float, complex)):
        return None
    return _answer_of_an_object(tx, right, reflected, left)


def _overrides(cls: type, base: type, name: str) -> bool:
    return lookup_on_class(cls, name)[0] is not lookup_on_class(base, name)[0]


def _in_place(function: Callable[..., Any], name: str, fallback: Callable[..., Any]) -> None:
    @registry.function(function)
    def in_place(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
        if isinstance(left, TensorVariable):
            _, reflected = BINARY[fallback]
            return _answer_behind(tx, left, reflected, right) or tx.emit(function, [left, right])
        is_told = isinstance(lookup_on_class(left.python_type, name)[0], types.FunctionType)
        result = None if is_told else _asked_before(tx, left, right, fallback)
        if result is None and not _is_scalar(left):
            result = _attempt(tx, left, name, right)
        return tx.call(fallback, [left, right]) if result is None else result


def _asked_before(
    tx: Tracer, left: VariableTracker, right: VariableTracker, function: Callable[..., Any]
) -> VariableTracker | None:
    """What a method of the user's makes of `+=` or `*=` before a list changes: where `+=` is inherited, it is first."""
    plain = (list, collections.deque)
    is_joined = left.python_type in plain if function is operator.add else issubclass(left.python_type, plain)
    return _asked_as_numbers(tx, function, left, right) if is_joined and function in _JOINED else None


def _unary(function: Callable[..., Any], name: str) -> None:
    @registry.function(function)
    def unary(tx: Tracer, operand: VariableTracker, /) -> VariableTracker:
        if isinstance(operand, TensorVariable):
            return tx.emit(function, [operand])
        if isinstance(operand, NumberVariable):
            return arithmetic.unary(tx, function, operand)
        result = numpy_numbers.unary(tx, function, operand) or fold(tx, function, operand)
        if result is not None:
            return result
        if not has_method(operand, name):
            tx.raises(unsaid(TypeError))
        return tx.call_method(operand, name)


for _function, (_name, _reflected) in BINARY.items():
    _binary(_function, _name, _reflected)
for _function, (_name, _fallback) in IN_PLACE.items():
    _in_place(_function, _name, _fallback)
for _function, _name in UNARY.items():
    _unary(_function, _name)


# Membership, truth


@registry.function(operator.not_)
def _not(tx: Tracer, operand: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(not tx.truth(operand))


@registry.function(operator.truth)
def _truth(tx: Tracer, operand: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(tx.truth(operand))


@registry.function(operator.contains)
def _contains(tx: Tracer, container: VariableTracker, item: VariableTracker, /) -> VariableTracker:
    if isinstance(container, TensorVariable):
        tx.break_graph(
            "MD201",
            "`in` looks into a tensor",
            why="The values of a tensor are only known when the graph runs.",
            fix="keep a tensor:  (t == item).any()",
        )
    is_new = container.source is None
    if is_new and _holds_other_kinds(tx, container, item):
        return ConstantVariable(False)
    by_answer = isinstance(item, NumberVariable) or (is_new and arithmetic.is_lazy(item))
    items = arithmetic.constant_items(container) if by_answer else None
    result = None
    if items is not None:
        result = arithmetic.is_among(tx, item, items)
    elif isinstance(container, ConstantVariable) or (is_new and not isinstance(container, DictVariable)):
        # Containers from outside are not read as a whole, and of a dict only the keys are.
        result = partial_reads.answer(tx, container, "__contains__", [item])
        if result is None and not arithmetic.involves_number(container):
            result = fold(tx, operator.contains, container, item)
    if result is not None:
        return result
    if has_method(container, "__contains__"):
        return ConstantVariable(tx.truth(tx.call_method(container, "__contains__", [item])))
    iterator = tx.call(iter, [container])
    while (candidate := tx.next_item(iterator)) is not None:  # no further than to the first that is found
        if tx.truth(tx.call(same_or_equal, [candidate, item])):
            return ConstantVariable(True)
    return ConstantVariable(False)


def _holds_other_kinds(tx: Tracer, container: VariableTracker, item: VariableTracker) -> bool:
    """Whether a tuple or list made here has nothing of the kind of `item`."""
    if container.python_type not in (tuple, list) or not isinstance(container, SequenceVariable):
        return False
    return all(_are_of_two_kinds(realize(tx, part), item) for part in container.items)


def _leave_to_python(tx: Tracer) -> NoReturn:
    """Cut the graph at a decision about a tensor's value, which may be one of a library."""
    what, fix = "`if` on a tensor value", "To keep one graph:  out = torch.where(condition, a, b)"
    marker = "this is a tensor; its value is only known when the graph runs"
    if tx.frames[-1].code is decided.__code__:
        what = "`min` or `max` decides by a tensor's value"
        fix = "To keep one graph:  x.clamp(min=0), torch.maximum(a, b)"
    frame = next((frame for frame in reversed(tx.frames) if not frame.is_ours), tx.frames[0])
    library = str(frame.namespace.get("__name__"))
    if frame is not tx.frames[0] and is_trusted_module(library):
        what += f", in {frame.code.co_qualname}() of {library}"
        fix, marker = instead_of(frame.code.co_name, library), "this asks for the value of a tensor"
    why = "The graph ends here and Python decides. Cost: one more graph, one sync per call."
    tx.break_graph("MD201", what, why=why, fix=fix, marker=marker)


def truth_of(tx: Tracer, obj: VariableTracker) -> bool:
    """`bool(obj)`, by `__bool__`, then `__len__`, else True."""
    if isinstance(obj, ConstantVariable) and not has_own(obj.python_type, "__bool__", "__len__"):
        return partial_reads.truth(tx, obj)
    if isinstance(obj, NumberVariable):
        return arithmetic.truth(tx, obj)
    if isinstance(obj, TensorVariable):
        known = tx.graph.constant(obj)
        if known is not None and known.numel() == 1:
            return bool(known)
        number = tensor_items.read(tx, obj)
        if number is not None:
            return tx.truth(number)
        _leave_to_python(tx)
    if isinstance(obj, SequenceVariable) and is_trusted_class(obj.python_type):  # a namedtuple's can say otherwise
        return tx.truth(tx.call_method(obj, "__len__"))
    for name in ("__bool__", "__len__"):
        if has_method(obj, name):
            result = tx.call_method(obj, name)
            if name == "__len__" and result.python_type is int:
                return tx.truth(result)
            if not isinstance(result, ConstantVariable) or (name == "__bool__" and type(result.value) is not bool):
                error = TypeError(f"{name} should return bool, returned {result.python_type.__name__}")
                tx.raises(error, exact=name == "__bool__")  # `__len__` has other words for it
            return bool(result.value)
    return True
