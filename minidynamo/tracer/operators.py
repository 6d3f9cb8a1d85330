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

from minidynamo.errors import Diagnostic, SkipFrame
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant
from minidynamo.guards.writers import same_value
from minidynamo.tracer import number_texts, numbers, numpy_numbers, parts, registry
from minidynamo.tracer.advice import instead_of
from minidynamo.tracer.attributes import MISSING, lookup_on_class
from minidynamo.tracer.constants import (
    NotConstant,
    as_constant,
    asks_for_members,
    below,
    from_result,
    has_own,
    involves_own_operators,
    is_constant_value,
    is_nan,
    slice_of,
)
from minidynamo.tracer.copies import can_be_two
from minidynamo.tracer.exceptions import says, tracked, unsaid
from minidynamo.tracer.operator_table import BINARY, COMPARISONS, IN_PLACE, UNARY
from minidynamo.tracer.polyfills.builtins import decided
from minidynamo.tracer.polyfills.lists import same_or_equal
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.tensor_indexing import WHOLE, one_bool_as_mask, select_numbers
from minidynamo.tracer.trace_rules import is_trusted_class, is_trusted_module
from minidynamo.tracer.unread import looked_at, same_moved
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BuiltinVariable, FunctionVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SequenceVariable, SliceVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ClassVariable, IdVariable, ObjectVariable, OpaqueVariable, PythonModuleVariable
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
    if any(map(involves_own_operators, operands)):
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


def _has_method(variable: VariableTracker, name: str) -> bool:
    return lookup_on_class(variable.python_type, name)[0] not in (MISSING, None)


def _takes_anything(cls: type, name: str) -> bool:
    """Whether the operator is `%` of a text, which puts anything into it, tensors too."""
    return name == "__mod__" and issubclass(cls, str | bytes | bytearray)


def _attempt(tx: Tracer, left: VariableTracker, name: str, right: VariableTracker) -> VariableTracker | None:
    """`left.name(right)`, or None when there is no such method or it answers NotImplemented."""
    if lookup_on_class(left.python_type, name)[0] is None:  # the class says that it cannot, and Python calls that
        tx.raises(TypeError("'NoneType' object is not callable"), exact=True)
    if not _has_method(left, name):
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
        computed = numbers.binary(tx, function, left, right) or number_texts.combined(tx, function, left, right)
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
            return ConstantVariable(_is_the_same(tx, left, right) is (function is operator.eq))
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
            return numbers.unary(tx, function, operand)
        result = numpy_numbers.unary(tx, function, operand) or fold(tx, function, operand)
        if result is not None:
            return result
        if not _has_method(operand, name):
            tx.raises(unsaid(TypeError))
        return tx.call_method(operand, name)


for _function, (_name, _reflected) in BINARY.items():
    _binary(_function, _name, _reflected)
for _function, (_name, _fallback) in IN_PLACE.items():
    _in_place(_function, _name, _fallback)
for _function, _name in UNARY.items():
    _unary(_function, _name)


# Subscripts


def as_index(tx: Tracer, key: VariableTracker) -> VariableTracker:
    """What a subscript means to sequences and tensors: an object with `__index__` is the number that it gives."""
    if isinstance(key, ObjectVariable) and key.storage is None and _has_method(key, "__index__"):
        number = tx.call_method(key, "__index__")
        return number if number.python_type is int else key
    if isinstance(key, SliceVariable):
        step, start, stop = (as_index(tx, part) for part in (key.step, key.start, key.stop))
        return slice_of(start, stop, step)
    return key


def _subscript_of(tx: Tracer, obj: VariableTracker, key: VariableTracker) -> VariableTracker:
    if not isinstance(obj, TensorVariable | ConstantVariable | SequenceVariable):
        return key
    if isinstance(obj, TensorVariable) and isinstance(key, TupleVariable) and key.python_type is tuple:
        parts = [as_index(tx, part) for part in key.items]
        return key if all(map(operator.is_, parts, key.items)) else TupleVariable(parts)
    return as_index(tx, key)


@registry.function(operator.getitem)
def _getitem(tx: Tracer, obj: VariableTracker, key: VariableTracker, /) -> VariableTracker:
    key = _subscript_of(tx, obj, key)
    if isinstance(obj, TensorVariable):
        part, left = select_numbers(tx, obj, key)
        return part if left is WHOLE else tx.emit(operator.getitem, [part, left])
    if isinstance(obj, ConstantVariable):
        result = parts.answer(tx, obj, "__getitem__", [key]) or fold(tx, operator.getitem, obj, key)
        if result is not None:
            return result
    if isinstance(obj, ClassVariable) and not _has_method(obj, "__getitem__"):
        return _generic_alias(tx, obj.value, key)
    return _subscript(tx, obj, "__getitem__", key)


def _generic_alias(tx: Tracer, cls: type, key: VariableTracker) -> VariableTracker:
    """`list[int]`: annotations are made of such objects. Most are new ones at each call; `typing` keeps its own."""
    own, owner = lookup_on_class(cls, "__class_getitem__")
    if (
        owner is not None
        and isinstance(own, classmethod)
        and not is_trusted_module(getattr(own.__func__, "__module__", None))
    ):
        return tx.call(tx.getattr(tx.wrap(cls, None), "__class_getitem__"), [key], unread=True)
    try:
        argument = _type_argument(tx, key)
        alias = cls[argument]  # type: ignore[index]
        if is_constant_value(alias):
            args: tuple[Any, ...] = getattr(alias, "__args__", ())
            made_of = key if isinstance(key, TupleVariable) else TupleVariable([key])
            held = args is argument or (len(args) == 1 and args[0] is argument)
            return ConstantVariable(alias, made_of=(made_of,) if held and type(alias) is types.GenericAlias else ())
        if cls[argument] is alias:  # type: ignore[index]
            return tx.wrap(alias, Constant(alias, "alias"))
    except (NotConstant, TypeError):
        pass
    what = f"making the generic alias {cls.__name__}[...]"
    tx.break_graph("MD241", what, why="Types are not made while tracing.", fix="make it outside")


def _type_argument(tx: Tracer, key: VariableTracker) -> Any:
    if isinstance(key, TupleVariable | ListVariable):
        return key.python_type(_type_argument(tx, item) for item in key.items)
    if isinstance(key, OpaqueVariable | ObjectVariable) and key.value is not None:
        tx.guard(key.source, GuardKind.IDENTITY, key.value)
        return key.value
    return as_constant(key)


@registry.function(operator.setitem)
@registry.takes_unread("value")
def _setitem(tx: Tracer, obj: VariableTracker, key: VariableTracker, value: VariableTracker, /) -> VariableTracker:
    key = _subscript_of(tx, obj, key)
    if isinstance(obj, TensorVariable):
        value = looked_at(tx, value)
        return tx.emit(operator.setitem, [*one_bool_as_mask(tx, *select_numbers(tx, obj, key), value), value])
    _subscript(tx, obj, "__setitem__", key, value)
    return ConstantVariable(None)


@registry.function(operator.delitem)
def _delitem(tx: Tracer, obj: VariableTracker, key: VariableTracker, /) -> VariableTracker:
    _subscript(tx, obj, "__delitem__", _subscript_of(tx, obj, key))
    return ConstantVariable(None)


def _subscript(tx: Tracer, obj: VariableTracker, name: str, *args: VariableTracker) -> VariableTracker:
    if not _has_method(obj, name):
        tx.raises(unsaid(TypeError))
    return tx.call_method(obj, name, args, unread=True)


# Identity, membership, truth


def is_same(left: VariableTracker, right: VariableTracker) -> bool:
    """Whether `left is right` for sure; two numbers that are not known may be one object or two."""
    valued = (ConstantVariable, ClassVariable, BuiltinVariable, FunctionVariable, PythonModuleVariable)
    if isinstance(left, NumberVariable) or isinstance(right, NumberVariable):
        return left is right
    if isinstance(left, valued) and isinstance(right, valued):
        return left.python_type is right.python_type and left.value is right.value
    if isinstance(left, IdVariable) and isinstance(right, IdVariable):
        return left.of is right.of
    if isinstance(left, TupleVariable) and isinstance(right, TupleVariable) and left.real is not None:
        return left.real is right.real
    return left is right or _are_empty_tuples(left, right)


def _are_empty_tuples(*tuples: VariableTracker) -> bool:
    """Whether two tuples are the one that is empty. Those from outside have been compared as the objects they are."""
    plain = [variable for variable in tuples if isinstance(variable, TupleVariable) and variable.cls is tuple]
    new = [variable for variable in plain if variable.source is None]
    return len(plain) == len(tuples) and bool(new) and not any(variable.items for variable in [*new, *plain])


def _is_the_same(tx: Tracer, left: VariableTracker, right: VariableTracker) -> bool:
    """`left is right`, guarded: two objects of one class that the program is given may be one in the next call."""
    moved = same_moved(tx, left, right)
    if moved is not None:
        return moved
    left, right = looked_at(tx, left), looked_at(tx, right)
    if left is not right and left.python_type is right.python_type:  # for numbers that hangs on their values
        values = numbers.pinned(left), numbers.pinned(right)
        if _may_be_two(*values):
            return _is_the_same_plain_value(tx, left, right)
        left, right = values
    if is_same(left, right):
        return True
    if _are_varying_slices(left, right):
        what = "`is` compares slices whose bounds vary"
        tx.break_graph("MD230", what, why="Whether they are one object is only known when the program runs.")
    known = isinstance(left, ConstantVariable | NumberVariable)  # whose value is guarded
    if not known and left.source is not None and right.source is not None and left.python_type is right.python_type:
        tx.guard(left.source, GuardKind.DISTINCT_OBJECTS, (right.source,))
    return False


def _are_varying_slices(*operands: VariableTracker) -> bool:
    """Whether both are slices from outside, one of them known by its bounds: the same one may have two trackers."""
    are_outside = all(each.python_type is slice and each.source is not None for each in operands)
    return are_outside and any(isinstance(each, SliceVariable) for each in operands)


def _may_be_two(left: VariableTracker, right: VariableTracker) -> bool:
    """Whether two plain values are equal, and can be one object or two."""
    if not isinstance(left, ConstantVariable) or not isinstance(right, ConstantVariable):
        return False
    return can_be_two(left.value) and same_value(left.value, right.value)


def _is_the_same_plain_value(tx: Tracer, left: VariableTracker, right: VariableTracker) -> bool:
    """`left is right` for equal numbers or texts: which objects hold them differs from call to call."""
    operands = (left, right)
    if any(isinstance(each, NumberVariable) for each in operands):
        what = "`is` compares two equal numbers"
        why = "Whether they are one object is only known when the program runs."
        if any(map(_is_computed, operands)):  # which is lost when the graph computes it
            raise SkipFrame(Diagnostic("MD230", what, why=why, fix="compare with `==`", where=tx.frames[0].location))
        tx.break_graph("MD230", what, why=why, fix="compare with `==`")
    same = is_same(left, right)
    constants = [each for each in operands if isinstance(each, ConstantVariable)]
    for each in constants:
        each.identify()
    if any(each.read_anew for each in constants):
        return same
    outside, other = operands if left.source is not None else (right, left)
    if outside.source is not None:
        place = other.source or Constant(as_constant(other), "constant")
        kind, expected = (GuardKind.SAME_OBJECT, place) if same else (GuardKind.DISTINCT_OBJECTS, (place,))
        tx.guard(outside.source, kind, expected)
    return same


def _is_computed(variable: VariableTracker) -> bool:
    """Whether the program has made the number: it is no argument, and no attribute or item from outside."""
    node = variable.node if isinstance(variable, NumberVariable) else None
    is_read = variable.source is not None and not isinstance(variable.source, Computed)
    return not is_read or (node is not None and node.op != "placeholder")


@registry.function(same_or_equal)
def _same_or_equal(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    """Equal numbers need not be looked at for being one object."""
    if numbers.is_unread(left) and left.python_type is not float:  # not a NaN, which equals itself in no other way
        return ConstantVariable(tx.truth(tx.call(operator.eq, [left, right])))
    are_plain = all(isinstance(each, ConstantVariable | NumberVariable) for each in (left, right))
    if are_plain and (is_nan(left) or is_nan(right)):  # which equals nothing, and is found as the object that it is
        return ConstantVariable(_is_the_same(tx, left, right))
    if is_same(left, right) or tx.truth(tx.call(operator.eq, [left, right])):
        return ConstantVariable(True)
    if not are_plain:  # one object is found whatever its `__eq__` says
        return ConstantVariable(_is_the_same(tx, left, right))
    numbers.refuse_nan(tx, left, right)
    return ConstantVariable(False)


@registry.method(object, "__eq__")
def _object_eq(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(True if _is_the_same(tx, left, right) else NotImplemented)


@registry.method(object, "__ne__")
def _object_ne(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    result = tx.call_method(left, "__eq__", [right])
    if isinstance(result, ConstantVariable) and result.value is NotImplemented:
        return result
    return ConstantVariable(not tx.truth(result))


@registry.function(operator.is_)
@registry.takes_unread("left", "right")
def _is(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(_is_the_same(tx, left, right))


@registry.function(operator.is_not)
@registry.takes_unread("left", "right")
def _is_not(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(not _is_the_same(tx, left, right))


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
    by_answer = isinstance(item, NumberVariable) or (is_new and numbers.is_unread(item))
    items = numbers.constant_items(container) if by_answer else None
    result = None
    if items is not None:
        result = numbers.is_among(tx, item, items)
    elif isinstance(container, ConstantVariable) or (is_new and not isinstance(container, DictVariable)):
        # Containers from outside are not read as a whole, and of a dict only the keys are.
        result = parts.answer(tx, container, "__contains__", [item])
        if result is None and not numbers.involves_number(container):
            result = fold(tx, operator.contains, container, item)
    if result is not None:
        return result
    if _has_method(container, "__contains__"):
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
    return all(_are_of_two_kinds(looked_at(tx, part), item) for part in container.items)


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
        return parts.truth(tx, obj)
    if isinstance(obj, NumberVariable):
        return numbers.truth(tx, obj)
    if isinstance(obj, TensorVariable):
        known = tx.graph.constant(obj)
        if known is not None and known.numel() == 1:
            return bool(known)
        _leave_to_python(tx)
    if isinstance(obj, SequenceVariable) and is_trusted_class(obj.python_type):  # a namedtuple's can say otherwise
        return tx.truth(tx.call_method(obj, "__len__"))
    for name in ("__bool__", "__len__"):
        if _has_method(obj, name):
            result = tx.call_method(obj, name)
            if name == "__len__" and result.python_type is int:
                return tx.truth(result)
            if not isinstance(result, ConstantVariable) or (name == "__bool__" and type(result.value) is not bool):
                error = TypeError(f"{name} should return bool, returned {result.python_type.__name__}")
                tx.raises(error, exact=name == "__bool__")  # `__len__` has other words for it
            return bool(result.value)
    return True
