"""Owns the builtin functions that are neither iteration, containers, attribute access nor operators.

Pure functions of constants are in `constants.py`. `getattr`, its variants and object construction are in the tracer.
"""

from __future__ import annotations

import builtins
import enum
import operator
import types
from collections.abc import Callable
from typing import Any

from minidynamo.guards.source import Computed
from minidynamo.tracer.attributes import class_has
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.lists import storage_of
from minidynamo.tracer.handlers.texts import depends_on_locale, refuse_local_text
from minidynamo.tracer.handlers.values import constant, expect_constant, is_constant
from minidynamo.tracer.lazy.lazy_value import class_of, exact_copy
from minidynamo.tracer.numbers import functions, graph_numbers
from minidynamo.tracer.numbers.arithmetic import involves_number, min_or_max
from minidynamo.tracer.numbers.formatting import formatted, lazy_text, text_of
from minidynamo.tracer.polyfills.builtins import better, decided, sum_of_numbers
from minidynamo.tracer.polyfills.objects import dict_repr, list_repr, set_repr, tuple_repr
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import as_constant, contains_override, overrides_method, slice_of
from minidynamo.tracer.records.registry import cannot_trace
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable
from minidynamo.variables.containers import SetVariable, SliceVariable, TupleVariable
from minidynamo.variables.objects import ObjectVariable
from minidynamo.variables.tensors import ItemVariable

# Functions whose effect or answer belongs to the running program: (what is done, why the graph breaks, the fix).
_BREAKS: dict[Callable[..., Any], tuple[str, str, str]] = {
    input: ("`input`", "It waits for a person.", ""),
    open: ("`open`", "It talks to the file system.", ""),
    builtins.exec: ("`exec`", "It runs code that is not in the function.", ""),
    builtins.eval: ("`eval`", "It runs code that is not in the function.", ""),
    builtins.compile: ("`compile`", "It makes code that is not in the function.", ""),
    builtins.__import__: ("an import", "It runs another file.", "Import at the top of the file."),
    breakpoint: ("`breakpoint`", "The debugger needs the running program.", ""),
}


def _breaks_graph(what: str, why: str, fix: str) -> registry.Handler:
    """Returns a handler that breaks the graph."""

    def handle(tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        tx.break_graph("MD233", what, why=why, fix=fix or "Move it out of the compiled function, or accept the break.")

    return handle


for _function, _texts in _BREAKS.items():
    registry.function(_function)(_breaks_graph(*_texts))


@registry.function(cannot_trace)
def _cannot_trace(
    tx: Tracer, what: VariableTracker, why: VariableTracker, fix: VariableTracker | None = None
) -> VariableTracker:
    reason, advice = expect_constant(tx, why, "text"), expect_constant(tx, fix, "text") if fix is not None else ""
    tx.break_graph("MD235", expect_constant(tx, what, "text"), why=f"It is not traced: {reason}.", fix=advice)


@registry.function(len)
def _len(tx: Tracer, obj: VariableTracker, /) -> VariableTracker:
    if not class_has(obj.python_type, "__len__"):
        tx.raises(TypeError(f"object of type '{obj.python_type.__name__}' has no len()"), exact=True)
    return _expect_result(tx, tx.call_method(obj, "__len__"), "__len__", int)


def _expect_result(tx: Tracer, result: VariableTracker, special: str, kind: type) -> VariableTracker:
    """Returns the result of a special method; raises, as Python does, if its class is not `kind`."""
    if isinstance(result, NumberVariable | ItemVariable) and result.cls is kind and special != "__index__":
        return result
    if not isinstance(result, ConstantVariable) or not issubclass(result.python_type, kind):
        tx.raises(TypeError(f"{special} returned non-{kind.__name__} (type {result.python_type.__name__})"))
    by_user = special == "__len__" and not isinstance(result.source, Computed)
    if by_user and tx.truth(tx.call(operator.lt, [result, ConstantVariable(0)])):
        tx.raises(ValueError("__len__() should return >= 0"))
    return result


@registry.function(better)
def _better(tx: Tracer, is_better: VariableTracker, best: VariableTracker, item: VariableTracker) -> VariableTracker:
    assert isinstance(is_better, BuiltinVariable)
    function = min if is_better.value is operator.lt else max
    found = min_or_max(tx, function, best, item) or graph_numbers.extreme(tx, function, best, item)
    found = found or graph_numbers.choice(tx, function, best, item, is_better)
    return tx.call(decided, [is_better, best, item]) if found is None else found


@registry.function(sum_of_numbers)
def _sum_of_numbers(tx: Tracer, numbers: TupleVariable, start: VariableTracker) -> VariableTracker:
    summed = graph_numbers.total(tx, numbers, start)
    if summed is not None:
        return summed
    if involves_number(numbers) or involves_number(start):
        known = functions.total(tx, numbers.items, start)
        if known is not None:
            return known
    return constant(sum(as_constant(numbers), as_constant(start)), numbers, start)


@registry.function(callable)
@registry.accepts_lazy("obj")
def _callable(tx: Tracer, obj: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(class_has(class_of(tx, obj), "__call__"))


# --- numbers and text -----------------------------------------------------------------------------------------------


@registry.function(bool)
def _bool(tx: Tracer, obj: VariableTracker | None = None, /) -> VariableTracker:
    return ConstantVariable(obj is not None and tx.truth(obj))


def _number(cls: type, special: str) -> registry.Handler:
    def convert(tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        if len(args) == 1 and not kwargs and not is_constant(args[0]):
            if not class_has(args[0].python_type, special):
                tx.break_graph(
                    "MD236",
                    f"`{cls.__name__}` of `{args[0].python_type.__name__}`",
                    why=f"The class has no `{special}` that could be traced.",
                )
            return _expect_result(tx, tx.call_method(args[0], special), special, cls)
        values = [expect_constant(tx, arg, f"an argument of `{cls.__name__}`") for arg in args]
        keywords = {name: expect_constant(tx, arg, f"`{name}`") for name, arg in kwargs.items()}
        try:
            return constant(cls(*values, **keywords), *args)
        except (ValueError, TypeError, OverflowError) as error:
            tx.raises(error, exact=True)

    return convert


registry.function(int)(_number(int, "__int__"))
registry.function(float)(_number(float, "__float__"))
registry.function(complex)(_number(complex, "__complex__"))


def _is_python_method(cls: type, *names: str) -> bool:
    return any(hasattr(getattr(cls, name), "__code__") for name in names)


def _has_own_text(obj: VariableTracker, name: str) -> bool:
    """Returns whether code of the program computes a text of an object, or of a member of an enum."""
    return (isinstance(obj, ObjectVariable) and _is_python_method(obj.cls, name)) or overrides_method(
        obj.python_type, name
    )


# Polyfills of `repr` for containers whose items may have a `__repr__` of their own.
_REPR_POLYFILLS: dict[type, Callable[..., str]] = {
    list: list_repr,
    tuple: tuple_repr,
    dict: dict_repr,
}


def _text(tx: Tracer, obj: VariableTracker, function: Callable[[Any], str], *special: str) -> VariableTracker:
    if isinstance(obj, ObjectVariable) and issubclass(obj.cls, BaseException):
        return _expect_result(tx, tx.call_method(obj, special[0]), special[0], str)
    for name in special:
        if _has_own_text(obj, name):
            return _expect_result(tx, tx.call_method(obj, name), name, str)
        if name == "__str__" and issubclass(obj.python_type, (str, bytes)) and _has_own_text(obj, "__repr__"):
            obj = exact_copy(storage_of(obj))  # `str.__str__` does not ask for the `__repr__` of a subclass
            break
    text = text_of(tx, function, obj)
    if text is not None:
        return text
    storage = storage_of(obj)
    if isinstance(storage, SetVariable):
        return tx.call(set_repr, [obj])
    polyfill = _REPR_POLYFILLS.get(storage.python_type)
    writes_items = not isinstance(storage, ConstantVariable) and contains_override(storage, "__repr__")
    if (
        polyfill is not None
        and not isinstance(storage, ConstantVariable)
        and (writes_items or not is_constant(storage))
    ):
        return tx.call(polyfill, [storage])
    if writes_items and isinstance(obj, TupleVariable) and _is_python_method(obj.cls, "__repr__"):
        return tx.call_method(obj, "__repr__")
    if polyfill is not None and storage is not obj:
        return constant(repr(as_constant(storage)))
    if isinstance(obj, ObjectVariable) and isinstance(obj.cls.__repr__, types.WrapperDescriptorType):
        found = registry.find_method(obj.cls, "__repr__")
        if found is not None:
            return found(tx, obj)
    if writes_items or (not is_constant(obj) and not involves_number(obj)):
        unread = lazy_text(tx, function, obj)
        if unread is not None:
            return unread
        tx.break_graph(
            "MD234",
            f"the text of a `{obj.python_type.__name__}`",
            why="The text is known when the graph has run, but the program reads it, or changes the value, earlier.",
            fix="Format shapes and Python numbers, or move the text out of the compiled function.",
            marker="this is not a constant",
        )
    return constant(function(as_constant(obj)), obj)


@registry.function(str)
def _str(
    tx: Tracer, object: VariableTracker | None = None, *encoding: VariableTracker, **named: VariableTracker
) -> VariableTracker:
    if encoding or named:  # `object` has the bytes; then follow the encoding and the handling of errors
        values = [expect_constant(tx, arg, "decoded text") for arg in ([] if object is None else [object, *encoding])]
        try:
            return constant(str(*values, **{name: expect_constant(tx, arg, name) for name, arg in named.items()}))
        except (TypeError, ValueError) as error:
            tx.raises(error, exact=True)
    return ConstantVariable("") if object is None else _text(tx, object, str, "__str__", "__repr__")


@registry.function(repr)
def _repr(tx: Tracer, obj: VariableTracker, /) -> VariableTracker:
    return _text(tx, obj, repr, "__repr__")


@registry.function(format)
def _format(tx: Tracer, value: VariableTracker, spec: VariableTracker | None = None, /) -> VariableTracker:
    known_spec = "" if spec is None else expect_constant(tx, spec, "a format")
    if _has_own_text(value, "__format__"):
        result = tx.call_method(value, "__format__", [ConstantVariable(known_spec)])
        return _expect_result(tx, result, "__format__", str)
    method: Any = value.python_type.__format__
    if method is enum.Enum.__format__ and _has_own_text(value, "__str__"):
        value = _str(tx, value)
    text = formatted(tx, value, known_spec)
    if text is not None:
        return text
    writes_items = not isinstance(value, ConstantVariable) and contains_override(value, "__repr__")
    if known_spec == "" and (writes_items or not is_constant(value)):
        return _str(tx, value)
    plain = expect_constant(tx, value, "formatted text")
    if depends_on_locale(plain, known_spec):
        refuse_local_text(tx)
    try:
        return constant(format(plain, known_spec), value)
    except (ValueError, TypeError) as error:
        tx.raises(error, exact=True)


@registry.function(round)
def _round(tx: Tracer, number: VariableTracker, ndigits: VariableTracker | None = None) -> VariableTracker:
    if not is_constant(number):
        return tx.call_method(number, "__round__", [] if ndigits is None else [ndigits])
    digits = None if ndigits is None else expect_constant(tx, ndigits, "`ndigits`")
    try:
        return constant(round(expect_constant(tx, number, "a number"), digits), number)
    except (ValueError, TypeError, OverflowError) as error:
        tx.raises(error, exact=True)


@registry.function(pow)
def _pow(
    tx: Tracer, base: VariableTracker, exp: VariableTracker, mod: VariableTracker | None = None
) -> VariableTracker:
    if mod is None:
        return tx.call(operator.pow, [base, exp])
    values = [expect_constant(tx, arg, "an argument of `pow`") for arg in (base, exp, mod)]
    try:
        return constant(pow(*values))
    except (ValueError, TypeError) as error:
        tx.raises(error, exact=True)


@registry.function(divmod)
def _divmod(tx: Tracer, x: VariableTracker, y: VariableTracker, /) -> VariableTracker:
    if not is_constant(x):
        return tx.call_method(x, "__divmod__", [y])
    try:
        return constant(divmod(expect_constant(tx, x, "a number"), expect_constant(tx, y, "a divisor")))
    except (ArithmeticError, TypeError) as error:
        tx.raises(error, exact=True)


@registry.function(slice)
def _slice(
    tx: Tracer, first: VariableTracker, second: VariableTracker | None = None, step: VariableTracker | None = None, /
) -> VariableTracker:
    nothing = ConstantVariable(None)
    start, stop = (nothing, first) if second is None else (first, second)
    return slice_of(start, stop, step or nothing)


@registry.attributes(SliceVariable)
def _slice_attribute(tx: Tracer, obj: SliceVariable, name: str) -> VariableTracker | None:
    return {"start": obj.start, "stop": obj.stop, "step": obj.step}.get(name)


@registry.attributes(NumberVariable)
def _number_attribute(tx: Tracer, obj: NumberVariable, name: str) -> VariableTracker | None:
    return functions.attribute(obj, name)
