"""Owns torch functions that are called with objects, not tensors, whose class defines `__torch_function__`.

Torch itself decides which function the class receives, and which arguments are checked for overrides: torch is called
with a probe in place of each object. Subclasses of tensors are not here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from minidynamo.bytecode.instructions import decode
from minidynamo.guards.source import Constant
from minidynamo.tracer.attributes import class_of, lookup_on_class
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.graph.dead_code import is_torch_function
from minidynamo.tracer.records.constants import NotConstant, from_constant, key_of
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import DictVariable, ListVariable, SequenceVariable, Slots, TupleVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable
from minidynamo.variables.tensors import TensorVariable

Args = Sequence[VariableTracker]
Kwargs = Mapping[str, VariableTracker]
_IN_PYTHON = ("torch.functional", "torch.nn.functional")
_NUMBERS = (10**6, 10**6 + 7)  # too large for Python's cache of small ints, so each is a distinct object


class _Probe:
    """Replaces the objects in a call, and records the arguments that torch passes to `__torch_function__`."""

    call: tuple[Any, tuple[type, ...], tuple[Any, ...], dict[str, Any] | None] | None = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> None:
        cls.call = func, types, args, kwargs


def overriding_arguments(args: Iterable[VariableTracker]) -> list[ObjectVariable]:
    """Returns the arguments, items of lists and tuples included, whose classes override torch functions."""
    found = []
    for arg in args:
        if isinstance(arg, ListVariable | TupleVariable) and type(arg.items) is Slots:
            found += overriding_arguments(arg.items)
        elif isinstance(arg, ObjectVariable) and _overrides_torch(arg.cls):
            found.append(arg)
    return found


def _overrides_torch(cls: type) -> bool:
    method, _ = lookup_on_class(cls, "__torch_function__")
    own = isinstance(method, classmethod) and isinstance(method.__func__, FunctionType)
    return own and not issubclass(cls, torch.Tensor)


def call_override(tx: Tracer, target: Callable[..., Any] | str, args: Args, kwargs: Kwargs) -> VariableTracker | None:
    """Calls `__torch_function__` of an argument's class; None if torch would not, or for several classes."""
    owners = overriding_arguments([*args, *kwargs.values()])
    if len({owner.cls for owner in owners}) != 1 or not _checks_overrides(target):
        return None
    try:
        replacements, call = _probed(tx, target, args, kwargs, _NUMBERS[0])
        _, second_run = _probed(tx, target, args, kwargs, _NUMBERS[1])
    except (TypeError, AttributeError, RuntimeError, ValueError):
        return None
    if call is None or second_run is None:
        return None
    called_function, types, positional, by_name = call
    _, _, *second_call = second_run
    try:
        passed: list[VariableTracker] = [
            TupleVariable(
                [_tracker_of(*values, replacements) for values in zip(positional, second_call[0], strict=True)]
            )
        ]
        if by_name is not None:
            items = {
                key_of(ConstantVariable(name)): _tracker_of(value, second_call[1][name], replacements)
                for name, value in by_name.items()
            }
            passed.append(DictVariable(items))
    except NotConstant:
        return None
    owner = owners[0]
    classes = [class_of(tx, owner) if issubclass(cls, _Probe) else ClassVariable(cls) for cls in types]
    leading = [tx.wrap(called_function, Constant(called_function, called_function.__name__)), TupleVariable(classes)]
    result = tx.call_method(owner, "__torch_function__", [*leading, *passed])
    return None if isinstance(result, ConstantVariable) and result.unguarded_value is NotImplemented else result


def _checks_overrides(target: Callable[..., Any] | str) -> bool:
    """Returns whether the target is a function of torch or a method of tensors, which check for overrides."""
    return isinstance(target, str) or is_torch_function(target) or getattr(target, "__module__", "") in _IN_PYTHON


def _probed(
    tx: Tracer, target: Callable[..., Any] | str, args: Args, kwargs: Kwargs, number: int
) -> tuple[list[tuple[object, VariableTracker]], Any]:
    """Calls torch with probes; returns pairs of (replacement, argument), and the call that torch made of the class.

    `number` replaces each symbolic number. Raises torch's own errors, and TypeError if an argument has no
    replacement."""

    class Probe(_Probe):
        pass

    given = [_replacement(arg, Probe, number) for arg in args]
    named = {name: _replacement(arg, Probe, number) for name, arg in kwargs.items()}
    function = getattr(given[0], target) if isinstance(target, str) else target
    positional_inputs = given[1:] if isinstance(target, str) else given
    if named or _spreads_keywords(tx):
        function(*positional_inputs, **named)
    else:
        function(*positional_inputs)  # torch then passes no keywords at all
    replacements = [*zip(given, args, strict=True), *((named[name], arg) for name, arg in kwargs.items())]
    return replacements, Probe.call


def _spreads_keywords(tx: Tracer) -> bool:
    """Returns whether the program calls with `**`, even if the mapping is empty."""
    frame = tx.frames[-1]
    call = next(instruction for instruction in decode(frame.code) if instruction.offset == frame.offset)
    return call.opname == "CALL_FUNCTION_EX" and bool((call.arg or 0) & 1)


def _tracker_of(
    value: object, with_others: object, replacements: Sequence[tuple[object, VariableTracker]]
) -> VariableTracker:
    """Returns the tracker of a value that torch passed to the class.

    Raises NotConstant if torch computed the value from a symbolic number: the second call then got a different
    result."""
    for source_key, tracker in replacements:
        if source_key is value:
            return tracker
    if any(isinstance(tracker, NumberVariable) for _, tracker in replacements) and not _same(value, with_others):
        raise NotConstant("number")
    return from_constant(value, lasting=True)


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) in (type(None), bool, int, float, str) and one == other


def _replacement(arg: VariableTracker, probe: type[_Probe], number: int) -> Any:
    """Returns a value of the same kind as `arg`; raises TypeError if none exists."""
    if isinstance(arg, ObjectVariable) and _overrides_torch(arg.cls):
        return probe()
    if isinstance(arg, TensorVariable) and arg.python_type in (torch.Tensor, torch.nn.Parameter):
        return arg.python_type(torch.empty(0))
    if isinstance(arg, SequenceVariable) and arg.cls in (list, tuple):
        return arg.cls([_replacement(item, probe, number) for item in arg.items])
    if isinstance(arg, NumberVariable):
        return arg.cls(str(number))
    if isinstance(arg, ConstantVariable):
        return arg.value
    raise TypeError
