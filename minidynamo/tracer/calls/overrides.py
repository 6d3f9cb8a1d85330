"""Owns torch functions of objects that are no tensors and take them over: their class has a `__torch_function__`.

Which function torch hands to the class, and whether it looks for such objects at that place, torch itself tells: it is
called with a probe in place of each object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from minidynamo.bytecode.instructions import decode
from minidynamo.guards.source import Constant
from minidynamo.tracer.attributes import class_of, lookup_on_class
from minidynamo.tracer.graph.dead_code import is_of_torch
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records.constants import NotConstant, from_constant, key_of
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SequenceVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable
from minidynamo.variables.tensors import TensorVariable

Args = Sequence[VariableTracker]
Kwargs = Mapping[str, VariableTracker]
_IN_PYTHON = ("torch.functional", "torch.nn.functional")
_NUMBERS = (10**6, 10**6 + 7)  # other objects each time that they are computed, unlike small ints


class _Probe:
    """Stands for the objects in a call, and notes what torch makes of it."""

    call: tuple[Any, tuple[type, ...], tuple[Any, ...], dict[str, Any] | None] | None = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> None:
        cls.call = func, types, args, kwargs


def taken_over(args: Iterable[VariableTracker]) -> list[ObjectVariable]:
    """Those of the arguments, and of the items of lists and tuples among them, that take over torch functions."""
    found = []
    for arg in args:
        if isinstance(arg, ListVariable | TupleVariable) and type(arg.items) in (list, tuple):
            found += taken_over(arg.items)
        elif isinstance(arg, ObjectVariable) and _takes_over(arg.cls):
            found.append(arg)
    return found


def _takes_over(cls: type) -> bool:
    method, _ = lookup_on_class(cls, "__torch_function__")
    own = isinstance(method, classmethod) and isinstance(method.__func__, FunctionType)
    return own and not issubclass(cls, torch.Tensor)


def call_override(tx: Tracer, target: Callable[..., Any] | str, args: Args, kwargs: Kwargs) -> VariableTracker | None:
    """What the class of an argument makes of a torch function; None where it is not asked, or there are several."""
    owners = taken_over([*args, *kwargs.values()])
    if len({owner.cls for owner in owners}) != 1 or not _looks_for_objects(target):
        return None
    try:
        places, call = _probed(tx, target, args, kwargs, _NUMBERS[0])
        _, again = _probed(tx, target, args, kwargs, _NUMBERS[1])
    except (TypeError, AttributeError, RuntimeError, ValueError):
        return None
    if call is None or again is None:
        return None
    asked, types, positional, by_name = call
    _, _, *of_others = again
    try:
        handed: list[VariableTracker] = [
            TupleVariable([_tracker_of(*values, places) for values in zip(positional, of_others[0], strict=True)])
        ]
        if by_name is not None:
            items = {
                key_of(ConstantVariable(name)): _tracker_of(value, of_others[1][name], places)
                for name, value in by_name.items()
            }
            handed.append(DictVariable(items))
    except NotConstant:
        return None
    owner = owners[0]
    classes = [class_of(tx, owner) if issubclass(cls, _Probe) else ClassVariable(cls) for cls in types]
    which = [tx.wrap(asked, Constant(asked, asked.__name__)), TupleVariable(classes)]
    made = tx.call_method(owner, "__torch_function__", [*which, *handed])
    return None if isinstance(made, ConstantVariable) and made.here is NotImplemented else made


def _looks_for_objects(target: Callable[..., Any] | str) -> bool:
    """Whether a function, or a method of tensors, is one of torch's, which may ask the classes of its arguments."""
    return isinstance(target, str) or is_of_torch(target) or getattr(target, "__module__", "") in _IN_PYTHON


def _probed(
    tx: Tracer, target: Callable[..., Any] | str, args: Args, kwargs: Kwargs, number: int
) -> tuple[list[tuple[object, VariableTracker]], Any]:
    """What torch hands to the class, with `number` for those that are no constants, and what stands for which of the
    arguments; raises what torch does, and TypeError where nothing can stand for an argument."""

    class Probe(_Probe):
        pass

    given = [_stand_in(arg, Probe, number) for arg in args]
    named = {name: _stand_in(arg, Probe, number) for name, arg in kwargs.items()}
    function = getattr(given[0], target) if isinstance(target, str) else target
    handed_in = given[1:] if isinstance(target, str) else given
    if named or _spreads_keywords(tx):
        function(*handed_in, **named)
    else:
        function(*handed_in)  # torch hands on no keywords at all
    places = [*zip(given, args, strict=True), *((named[name], arg) for name, arg in kwargs.items())]
    return places, Probe.call


def _spreads_keywords(tx: Tracer) -> bool:
    """Whether the program calls with `**`, maybe of nothing."""
    frame = tx.frames[-1]
    call = next(instruction for instruction in decode(frame.code) if instruction.offset == frame.offset)
    return call.opname == "CALL_FUNCTION_EX" and bool((call.arg or 0) & 1)


def _tracker_of(
    value: object, with_others: object, places: Sequence[tuple[object, VariableTracker]]
) -> VariableTracker:
    """What a value stands for that torch hands on; raises NotConstant where it made it of others, so that it is not
    the same with other numbers."""
    for stand_in, tracker in places:
        if stand_in is value:
            return tracker
    if any(isinstance(tracker, NumberVariable) for _, tracker in places) and not _same(value, with_others):
        raise NotConstant("number")
    return from_constant(value, lasting=True)


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) in (type(None), bool, int, float, str) and one == other


def _stand_in(arg: VariableTracker, probe: type[_Probe], number: int) -> Any:
    """A value of the kind of `arg`; raises TypeError where there is none."""
    if isinstance(arg, ObjectVariable) and _takes_over(arg.cls):
        return probe()
    if isinstance(arg, TensorVariable) and arg.python_type in (torch.Tensor, torch.nn.Parameter):
        return arg.python_type(torch.empty(0))
    if isinstance(arg, SequenceVariable) and arg.cls in (list, tuple):
        return arg.cls([_stand_in(item, probe, number) for item in arg.items])
    if isinstance(arg, NumberVariable):
        return arg.cls(str(number))
    if isinstance(arg, ConstantVariable):
        return arg.value
    raise TypeError
