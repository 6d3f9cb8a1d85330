"""Owns Python's operator protocol: which special methods an operator calls, in which order, for values of any kind.

The special methods themselves are not here: they are registered per type in `handlers/`, or written by the user.
Constants are folded first. An operator with a tensor operand becomes a graph node."""

from __future__ import annotations

import collections
import enum
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant
from minidynamo.tracer.attributes import class_has, lookup_on_class
from minidynamo.tracer.calls.identity import is_identical
from minidynamo.tracer.frames.exceptions import same_message, tracked, without_message
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy import partial_reads
from minidynamo.tracer.lazy.lazy_value import next_lazy
from minidynamo.tracer.numbers import arithmetic, formatting, numpy_numbers, tensor_items
from minidynamo.tracer.polyfills.builtins import decided
from minidynamo.tracer.polyfills.containers import same_or_equal
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import (
    NotConstant,
    as_constant,
    contains_override,
    from_result,
    may_create_members,
    overrides_method,
    plain_operand,
)
from minidynamo.tracer.records.fix_hints import hint_for
from minidynamo.tracer.records.operator_table import BINARY, COMPARISONS, IN_PLACE, UNARY
from minidynamo.tracer.trace_rules import is_trusted_class, is_trusted_module
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import DictVariable, SequenceVariable, SliceVariable
from minidynamo.variables.objects import ObjectVariable
from minidynamo.variables.tensors import ItemVariable, TensorVariable

_COMPARISONS = frozenset(COMPARISONS.values())


def involves_tensor(variable: VariableTracker) -> bool:
    """Returns whether the value is a tensor, or a tuple, list or slice with a tensor in it."""
    if isinstance(variable, TensorVariable):
        return True
    if isinstance(variable, SequenceVariable):
        return any(involves_tensor(item) for item in variable.items)
    if isinstance(variable, SliceVariable):
        return any(involves_tensor(part) for part in (variable.start, variable.stop, variable.step))
    return False


def fold(tx: Tracer, function: Callable[..., Any], *operands: VariableTracker) -> VariableTracker | None:
    """Returns the result on constants; None if an operand is not a constant or has operators defined by the user.

    Errors are raised natively."""
    if any(map(contains_override, operands)):
        return None
    for name in BINARY.get(function) or (UNARY.get(function, ""),):
        for operand in operands:
            _guard_flag_operator(tx, operand, name)
    return _fold(tx, function, *operands)


def _guard_flag_operator(tx: Tracer, operand: VariableTracker, name: str) -> None:
    """Guards an operator that the standard library put into a flag's class, whose names have a guard already."""
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
    """Returns the result of a pure function; None if no tracker can represent the result.

    `args` and `kwargs` hold the plain values of `operands`, which are in the order of the call."""
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        tx.raises(tracked(error, tx.side_effects, exact=same_message(error)))
    try:
        return from_result(result, operands, [*args, *kwargs.values()])
    except NotConstant:
        return None


def _is_text_formatting(cls: type, name: str) -> bool:
    """Returns whether the operator is `%` of a text, which formats any object, tensors included."""
    return name == "__mod__" and issubclass(cls, str | bytes | bytearray)


def _try_method(tx: Tracer, left: VariableTracker, name: str, right: VariableTracker) -> VariableTracker | None:
    """Returns `left.name(right)`; None if the method is missing or returns NotImplemented."""
    if lookup_on_class(left.python_type, name)[0] is None:  # the class sets it to None, and Python calls the None
        tx.raises(TypeError("'NoneType' object is not callable"), exact=True)
    if not class_has(left.python_type, name):
        return None
    result: VariableTracker | None
    is_folded = isinstance(left, ConstantVariable) and not _is_text_formatting(left.python_type, name)
    if is_folded and not may_create_members(left.python_type) and not overrides_method(left.python_type, name):
        # Methods of numbers and texts reject operands of any other class.
        result = _fold(tx, getattr(left.python_type, name), left, plain_operand(right))
    else:
        result = tx.call_method(left, name, [right])
    return None if isinstance(result, ConstantVariable) and result.python_type is type(NotImplemented) else result


def _binary(function: Callable[..., Any], name: str, reflected: str) -> None:
    @registry.function(function)
    def binary(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
        if isinstance(left, TensorVariable) or isinstance(right, TensorVariable):
            result = _try_object(tx, left, name, right) or _try_reflected_object(tx, left, reflected, right)
            return result or tx.emit(function, [left, right])
        if function in (operator.eq, operator.ne) and _have_different_kinds(left, right):
            return ConstantVariable(function is operator.ne)
        computed = arithmetic.binary(tx, function, left, right) or formatting.text_binary(tx, function, left, right)
        computed = computed or numpy_numbers.numpy_binary(tx, function, left, right)
        if computed is not None:
            return computed
        are_constants = isinstance(left, ConstantVariable) and isinstance(right, ConstantVariable)
        if are_constants and not _is_text_formatting(left.python_type, name):
            result = fold(tx, function, left, right)
            if result is not None:
                return result
        result = _try_as_numbers(tx, function, left, right) or _try_as_sequences(tx, function, left, right)
        if result is not None:
            return result
        if function in (operator.eq, operator.ne):
            return ConstantVariable(is_identical(tx, left, right) is (function is operator.eq))
        if any(issubclass(each.python_type, _SEQUENCE_OPERATORS.get(function, ())) for each in (left, right)):
            tx.raises(TypeError("an operand cannot be joined"))  # one call more than in Python
        tx.raises(without_message(TypeError))


# Values of different kinds are never equal, so the values need not be known.
_KINDS: dict[type, str] = {
    **dict.fromkeys((bool, int, float, complex), "number"),
    **dict.fromkeys((set, frozenset), "set"),
    **{cls: cls.__name__ for cls in (str, bytes, tuple, list, dict, range, slice, type(None), type(...))},
}


def _have_different_kinds(left: VariableTracker, right: VariableTracker) -> bool:
    first, second = _KINDS.get(left.python_type), _KINDS.get(right.python_type)
    return first is not None and second is not None and first != second


def _try_as_numbers(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """Tries the number methods of both operands; None for NotImplemented.

    Sequences are skipped, because Python concatenates and repeats later, except for a user's class that defines the
    operator."""
    first, second = left.python_type, right.python_type
    name, reflected = BINARY[function]
    order = [(left, name, right)] if _uses_number_protocol(first, function) else []
    # Operands of the same class are not tried in reverse, except by comparisons.
    compares = function in _COMPARISONS
    if _uses_number_protocol(second, function) and (first is not second or compares):
        is_first = second is not first and issubclass(second, first)
        is_first = is_first and (compares or _overrides(second, first, reflected))
        order.insert(0 if is_first else len(order), (right, reflected, left))
    sequences = _SEQUENCE_OPERATORS.get(function, ())
    for receiver, method, other in order:
        if issubclass(other.python_type, sequences) and lookup_on_class(receiver.python_type, method)[1] in _NUMBERS:
            continue  # numbers reject sequences, whose items stay lazy
        result = _try_method(tx, receiver, method, other)
        if result is not None:
            return result
        if receiver is left and lookup_on_class(first, method)[1] in sequences:
            tx.raises(without_message(TypeError))
    return None


def _try_as_sequences(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """Tries `+` and `*` of sequences, after the number methods."""
    name, reflected = BINARY[function]
    for receiver, method, other in ((left, name, right), (right, reflected, left)):
        if issubclass(receiver.python_type, _SEQUENCE_OPERATORS.get(function, ())):
            return _try_method(tx, receiver, method, other)
        if function is operator.add:
            break
    return None


_NUMBERS = (bool, int, float, complex)
# Operators of sequences -> the classes that concatenate or repeat with them.
_SEQUENCE_OPERATORS: dict[Callable[..., Any], tuple[type, ...]] = dict.fromkeys(
    (operator.add, operator.mul), (list, tuple, str, bytes, bytearray, collections.deque)
)


def _uses_number_protocol(cls: type, function: Callable[..., Any]) -> bool:
    """Returns whether Python tries a class's number methods first: not for sequences with inherited methods."""
    sequences = _SEQUENCE_OPERATORS.get(function, ())
    owners = (lookup_on_class(cls, name)[1] for name in BINARY[function])
    return not issubclass(cls, sequences) or any(owner not in (None, *sequences) for owner in owners)


def _try_object(tx: Tracer, obj: VariableTracker, name: str, tensor: VariableTracker) -> VariableTracker | None:
    """Tries the operator of a user's object, or of a text, whose other operand is a tensor."""
    cls = obj.python_type
    if isinstance(obj, TensorVariable) or hasattr(cls, "__torch_function__"):
        return None
    is_plain = isinstance(obj, ObjectVariable) and obj.storage is None
    is_own = isinstance(lookup_on_class(cls, name)[0], types.FunctionType)  # in a subclass of list or int, say
    return _try_method(tx, obj, name, tensor) if is_plain or is_own or _is_text_formatting(cls, name) else None


def _try_reflected_object(
    tx: Tracer, left: VariableTracker, reflected: str, right: VariableTracker
) -> VariableTracker | None:
    """Tries the reflected operator of an object on the right; the tensor handles numbers of any class itself."""
    if issubclass(right.python_type, (int, float, complex)):
        return None
    return _try_object(tx, right, reflected, left)


def _overrides(cls: type, base: type, name: str) -> bool:
    return lookup_on_class(cls, name)[0] is not lookup_on_class(base, name)[0]


def _in_place(function: Callable[..., Any], name: str, fallback: Callable[..., Any]) -> None:
    @registry.function(function)
    def in_place(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
        if isinstance(left, TensorVariable):
            _, reflected = BINARY[fallback]
            return _try_reflected_object(tx, left, reflected, right) or tx.emit(function, [left, right])
        is_user_defined = isinstance(lookup_on_class(left.python_type, name)[0], types.FunctionType)
        result = None if is_user_defined else _try_before_inplace(tx, left, right, fallback)
        if result is None and not isinstance(left, ConstantVariable):
            result = _try_method(tx, left, name, right)
        return tx.call(fallback, [left, right]) if result is None else result


def _try_before_inplace(
    tx: Tracer, left: VariableTracker, right: VariableTracker, function: Callable[..., Any]
) -> VariableTracker | None:
    """Tries a user's number methods before `+=` or `*=` changes a list: Python tries them before an inherited `+=`."""
    mutable = (list, collections.deque)
    changes = left.python_type in mutable if function is operator.add else issubclass(left.python_type, mutable)
    return _try_as_numbers(tx, function, left, right) if changes and function in _SEQUENCE_OPERATORS else None


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
        if not class_has(operand.python_type, name):
            tx.raises(without_message(TypeError))
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
            fix="Keep a tensor:  (t == item).any()",
        )
    is_new = container.source is None
    if is_new and _has_no_item_of_kind(tx, container, item):
        return ConstantVariable(False)
    guards_answer = isinstance(item, NumberVariable) or (is_new and arithmetic.is_lazy(item))
    items = arithmetic.constant_items(container) if guards_answer else None
    result = None
    if items is not None:
        result = arithmetic.guarded_membership(tx, item, items)
    elif isinstance(container, ConstantVariable) or (is_new and not isinstance(container, DictVariable)):
        # External containers are not realized as a whole; a test on a dict reads its keys only.
        result = partial_reads.answer(tx, container, "__contains__", [item])
        if result is None and not arithmetic.involves_number(container):
            result = fold(tx, operator.contains, container, item)
    if result is not None:
        return result
    if class_has(container.python_type, "__contains__"):
        return ConstantVariable(tx.truth(tx.call_method(container, "__contains__", [item])))
    iterator = tx.call(iter, [container])
    while (candidate := next_lazy(tx, iterator)) is not None:  # stops at the first match
        if tx.truth(tx.call(same_or_equal, [candidate.realize(), item])):
            return ConstantVariable(True)
    return ConstantVariable(False)


def _has_no_item_of_kind(tx: Tracer, container: VariableTracker, item: VariableTracker) -> bool:
    """Returns whether a tuple or list created by the program has no item of the same kind as `item`."""
    if container.python_type not in (tuple, list) or not isinstance(container, SequenceVariable):
        return False
    return all(_have_different_kinds(part.realize(), item) for part in container.items)


def _break_on_tensor_value(tx: Tracer, what: str = "`if` on a tensor value", name: str = "its value") -> NoReturn:
    """Cuts the graph where the program, or a library, branches on a tensor's value."""
    fix = "To keep one graph:  out = torch.where(condition, a, b)"
    marker = f"this {'is' if name == 'its value' else 'reads'} a tensor; {name} is only known when the graph runs"
    if tx.frames[-1].code is decided.__code__:
        what = "`min` or `max` decides by a tensor's value"
        fix = "To keep one graph:  x.clamp(min=0), torch.maximum(a, b)"
    frame = next((frame for frame in reversed(tx.frames) if not frame.is_polyfill), tx.frames[0])
    library = str(frame.namespace.get("__name__"))
    if frame is not tx.frames[0] and is_trusted_module(library):
        what += f", in {frame.code.co_qualname}() of {library}"
        fix, marker = hint_for(frame.code.co_name, library), "this asks for the value of a tensor"
    why = "The graph ends here and Python decides. Cost: one more graph, one sync per call."
    tx.break_graph("MD201", what, why=why, fix=fix, marker=marker)


def truth_of(tx: Tracer, obj: VariableTracker) -> bool:
    """Returns `bool(obj)`: by `__bool__`, then `__len__`, else True."""
    if isinstance(obj, ConstantVariable) and not overrides_method(obj.python_type, "__bool__", "__len__"):
        return partial_reads.truth(tx, obj)
    if isinstance(obj, NumberVariable):
        return arithmetic.truth(tx, obj)
    if isinstance(obj, ItemVariable):
        _break_on_tensor_value(tx, "`if` on a number that the graph reads from a tensor", "its number")
    if isinstance(obj, TensorVariable):
        known = tx.graph.constant(obj)
        if known is not None and known.numel() == 1:
            return bool(known)
        number = tensor_items.read(tx, obj)
        if number is not None:
            return tx.truth(number)
        _break_on_tensor_value(tx)
    if isinstance(obj, SequenceVariable) and is_trusted_class(obj.python_type):  # namedtuples may define `__bool__`
        return tx.truth(tx.call_method(obj, "__len__"))
    for name in ("__bool__", "__len__"):
        if class_has(obj.python_type, name):
            result = tx.call_method(obj, name)
            if name == "__len__" and result.python_type is int:
                return tx.truth(result)
            if not isinstance(result, ConstantVariable) or (name == "__bool__" and type(result.value) is not bool):
                error = TypeError(f"{name} should return bool, returned {result.python_type.__name__}")
                tx.raises(error, exact=name == "__bool__")  # the message for `__len__` differs
            return bool(result.value)
    return True
