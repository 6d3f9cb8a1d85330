"""Owns the callable objects of functools and operator: partial, wraps, caches, itemgetter, attrgetter, methodcaller.

Calls of partial objects are in `tracer/calls/call.py`.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minidynamo.compat import FLATTENS_ALL_PARTIALS
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Computed, Constant
from minidynamo.tracer.attributes import class_has, lookup_on_class
from minidynamo.tracer.attributes.lookup import find_lazy
from minidynamo.tracer.calls.construct import checked_class
from minidynamo.tracer.frames.exceptions import without_message
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.objects import check_classes
from minidynamo.tracer.handlers.values import constant, expect_constant
from minidynamo.tracer.polyfills.functools import best_match, call_a_method, get_attributes, get_items
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import as_constant, keyword_key
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import (
    BuiltinVariable,
    FunctionVariable,
    LibraryCallable,
    MethodVariable,
    NestedFunctionVariable,
    PartialVariable,
)
from minidynamo.variables.containers import DictVariable, TupleVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable, OpaqueVariable


@registry.function(functools.partial)
@registry.accepts_lazy("args", "keywords")
def _partial(
    tx: Tracer, function: VariableTracker, /, *args: VariableTracker, **keywords: VariableTracker
) -> VariableTracker:
    if not class_has(function.python_type, "__call__"):
        tx.raises(TypeError("the first argument must be callable"), exact=True)
    inner = _flattened_partial(tx, function)
    if inner is not None:
        inherited = {str(key.token): value for key, value in inner.keywords.items.lazy().items()}
        merged = _partial(tx, inner.function, *inner.args.items.lazy(), *args, **{**inherited, **keywords})
        assert isinstance(merged, PartialVariable)
        merged.args = merged.args if args else inner.args
        return merged
    named = {keyword_key(name): value for name, value in keywords.items()}
    return PartialVariable(function, TupleVariable([*args]), DictVariable(named))


@registry.method(functools.partial, "__call__")
@registry.accepts_lazy("args", "kwargs")
def _call_partial(
    tx: Tracer, partial: PartialVariable, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    return tx.call(partial, args, kwargs)


@registry.function(functools.partial.__new__)
@registry.accepts_lazy("args", "keywords")
def _new_partial(
    tx: Tracer, cls: VariableTracker, /, *args: VariableTracker, **keywords: VariableTracker
) -> VariableTracker:
    value = checked_class(tx, lambda subclass: functools.partial.__new__(subclass, print), cls)
    plain = tx.call(functools.partial, args, keywords)
    return plain if value is functools.partial else ObjectVariable(None, value, plain)


def _flattened_partial(tx: Tracer, function: VariableTracker) -> PartialVariable | None:
    """Returns the partial object that functools flattens into a new partial of `function`; else None.

    Functools flattens a partial object without a dictionary; in some versions of Python only if the class of the object
    does not override `__call__`.
    """
    inner_partial = function.storage if isinstance(function, ObjectVariable) else function
    if not isinstance(inner_partial, PartialVariable) or _has_attributes(tx, inner_partial):
        return None
    if isinstance(function, ObjectVariable):
        is_plain = FLATTENS_ALL_PARTIALS or lookup_on_class(function.cls, "__call__")[1] is functools.partial
        if not is_plain or tx.side_effects.written_attributes(function):
            return None
    return inner_partial


_REDUCE = Constant(functools.partial.__reduce__, "partial.__reduce__")
_DICT_OF_PARTIAL = "{1}({0})[2][3]"  # a read of `__dict__` would create the dictionary


def _dict_of_partial(partial: functools.partial[Any]) -> Any:
    return functools.partial.__reduce__(partial)[2][3]


def _has_attributes(tx: Tracer, obj: PartialVariable) -> bool:
    """Returns whether an external partial object has a dictionary."""
    if obj.value is None or obj.source is None:
        return False
    has_dict = _dict_of_partial(obj.value) is not None
    tx.graph.shapes.require(Computed(f"({_DICT_OF_PARTIAL} is not None)", (obj.source, _REDUCE)), has_dict)
    return has_dict


def _attribute_names(tx: Tracer, obj: PartialVariable) -> tuple[str, ...]:
    """Returns the names of the attributes in the dictionary of a partial object."""
    if obj.value is None or obj.source is None or not _has_attributes(tx, obj):
        return ()
    names = (*_dict_of_partial(obj.value),)
    tx.guard(Computed(_DICT_OF_PARTIAL, (obj.source, _REDUCE)), GuardKind.DICT_KEYS, names)
    return names


@registry.function(types.MethodType)
def _method(tx: Tracer, function: VariableTracker, receiver: VariableTracker, /) -> VariableTracker:
    if isinstance(receiver, ConstantVariable) and receiver.value is None:
        tx.raises(without_message(TypeError))
    return MethodVariable(function, receiver)


@registry.opaque_method(classmethod.__get__)
@registry.opaque_method(staticmethod.__get__)
def _bind(
    tx: Tracer, method: VariableTracker, instance: VariableTracker, owner: VariableTracker | None = None, /
) -> VariableTracker:
    """Binds a class method or static method object that the program holds."""
    real = method.value if isinstance(method, OpaqueVariable) else None
    if not isinstance(real, classmethod | staticmethod) or not isinstance(real.__func__, types.FunctionType):
        tx.break_graph("MD206", "`__get__` of a method is used", why="It binds something else than a function.")
    function = tx.getattr(method, "__func__")
    if isinstance(real, staticmethod):
        return function
    return MethodVariable(function, tx.call(type, [instance]) if owner is None else owner)


@registry.attributes(FunctionVariable)
def _function_code(tx: Tracer, obj: FunctionVariable, name: str) -> VariableTracker | None:
    if name != "__code__" or obj.source is None:
        return None
    source = Attr(obj.source, name)
    tx.guard(source, GuardKind.IDENTITY, obj.value.__code__)
    return ConstantVariable(obj.value.__code__, source=source)


@registry.attributes(PartialVariable)
def _partial_attribute(tx: Tracer, obj: PartialVariable, name: str) -> VariableTracker | None:
    if lookup_on_class(functools.partial, name)[1] is not None or obj.value is None or obj.source is None:
        return {"func": obj.function, "args": obj.args, "keywords": obj.keywords}.get(name)
    # A read of `__dict__` would create the dictionary, and functools would no longer flatten `obj`.
    is_present = hasattr(obj.value, name)
    presence = Computed("{0}({1}, {2})", (Constant(hasattr, "hasattr"), obj.source, Constant(name, repr(name))))
    tx.graph.shapes.require(presence, is_present)
    return tx.wrap(getattr(obj.value, name), Attr(obj.source, name)) if is_present else None


@registry.function(functools.update_wrapper)
def _update_wrapper(
    tx: Tracer,
    wrapper: VariableTracker,
    wrapped: VariableTracker,
    assigned: VariableTracker | None = None,
    updated: VariableTracker | None = None,
) -> VariableTracker:
    store: Callable[[str, VariableTracker], Any]
    if isinstance(wrapper, NestedFunctionVariable) and updated is None:
        store = wrapper.attributes.__setitem__
    elif isinstance(wrapper, ObjectVariable) and wrapper.source is None and isinstance(wrapped, FunctionVariable):
        store = functools.partial(_set, tx, wrapper)
    else:
        tx.break_graph(
            "MD240",
            "`functools.update_wrapper` of a function that exists outside of the graph",
            why="Only functions that are created while tracing can get another name and documentation.",
            fix="Wrap the function outside of the compiled function.",
        )
    names = functools.WRAPPER_ASSIGNMENTS if assigned is None else expect_constant(tx, assigned, "`assigned`")
    for name in names:
        value = _attribute(tx, wrapped, name)
        if value is not None:
            store(name, value)
    if "__dict__" in (functools.WRAPPER_UPDATES if updated is None else expect_constant(tx, updated, "`updated`")):
        for name, value in _own_attributes(tx, wrapped):
            store(name, value)
    store("__wrapped__", wrapped)
    return wrapper


def _set(tx: Tracer, obj: ObjectVariable, name: str, value: VariableTracker) -> None:
    tx.call(setattr, [obj, ConstantVariable(name), value])


# Callables without an attribute that can change.
_BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def _own_attributes(tx: Tracer, wrapped: VariableTracker) -> list[tuple[str, VariableTracker]]:
    """Returns the attributes that a program has set on a function or an object."""
    if isinstance(wrapped, NestedFunctionVariable):
        return [*wrapped.attributes.items()]
    if isinstance(wrapped, FunctionVariable):
        return [(name, tx.getattr(wrapped, name)) for name in vars(wrapped.value)]
    if isinstance(wrapped, PartialVariable):
        return [(name, tx.getattr(wrapped, name)) for name in _attribute_names(tx, wrapped)]
    table = find_lazy(tx, wrapped, "__dict__")
    items = table.items.lazy() if isinstance(table, DictVariable) else {}
    return [(str(key.token), value) for key, value in items.items()]


def _attribute(tx: Tracer, wrapped: VariableTracker, name: str) -> VariableTracker | None:
    """Returns a field that every function has, or None if the wrapped object lacks it."""
    if isinstance(wrapped, MethodVariable):
        wrapped = wrapped.function
    if isinstance(wrapped, FunctionVariable) and wrapped.source is not None and hasattr(wrapped.value, name):
        return tx.wrap(getattr(wrapped.value, name), Attr(wrapped.source, name))
    if isinstance(wrapped, BuiltinVariable) and isinstance(wrapped.value, _BUILT_IN):
        return constant(getattr(wrapped.value, name)) if hasattr(wrapped.value, name) else None
    if isinstance(wrapped, ClassVariable):
        tx.break_graph("MD240", "`functools.wraps` of a class", why="The attributes of a class are not copied.")
    if isinstance(wrapped, NestedFunctionVariable):
        if name in wrapped.attributes:
            return wrapped.attributes[name]
        if name in ("__annotate__", "__type_params__"):
            return None
    return find_lazy(tx, wrapped, name)


@registry.function(functools.wraps)
def _wraps(
    tx: Tracer,
    wrapped: VariableTracker,
    assigned: VariableTracker | None = None,
    updated: VariableTracker | None = None,
) -> VariableTracker:
    keywords = {"wrapped": wrapped, "assigned": assigned, "updated": updated}
    options = {name: value for name, value in keywords.items() if value is not None}
    return tx.call(functools.partial, [tx.wrap(functools.update_wrapper, None)], options)


@registry.function(best_match)
def _best_match(tx: Tracer, cls: VariableTracker, classes: VariableTracker) -> VariableTracker:
    return ClassVariable(check_classes(tx, best_match, as_constant(cls), as_constant(classes)))


# --- itemgetter, attrgetter, methodcaller ---------------------------------------------------------------


def _getter(cls: type, polyfill: Callable[..., Any]) -> None:
    @registry.function(cls)
    def make(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        _refuse(tx, lambda: cls(*map(_getter_argument, args), **kwargs))
        return LibraryCallable(cls, cls, args, kwargs)

    @registry.method(cls, "__call__")
    @registry.accepts_lazy("args")
    def call(
        tx: Tracer, getter: LibraryCallable, /, *args: VariableTracker, **kwargs: VariableTracker
    ) -> VariableTracker:
        return _get(tx, getter.args, getter.kwargs, args, kwargs)

    @registry.instances(cls)
    @registry.accepts_lazy("args")
    def call_outside(
        tx: Tracer, getter: BuiltinVariable, /, *args: VariableTracker, **kwargs: VariableTracker
    ) -> VariableTracker:
        constructor, arguments = getter.value.__reduce__()
        named = constructor.keywords if isinstance(constructor, functools.partial) else {}
        first = constructor.args if isinstance(constructor, functools.partial) else ()
        getter_args = [tx.wrap(arg, None) for arg in (*first, *arguments)]
        return _get(tx, getter_args, {name: tx.wrap(value, None) for name, value in named.items()}, args, kwargs)

    def _get(
        tx: Tracer,
        getter_args: Sequence[VariableTracker],
        named: Mapping[str, VariableTracker],
        args: Sequence[VariableTracker],
        kwargs: Mapping[str, VariableTracker],
    ) -> VariableTracker:
        if kwargs or len(args) != 1:
            _refuse(tx, lambda: cls("")(*args, **kwargs))
        return tx.call(polyfill, [args[0], *getter_args], named, lazy=True)


def _getter_argument(arg: VariableTracker) -> object:
    """Returns a value on which constructing a getter fails or succeeds as on the argument itself."""
    return "" if issubclass(arg.python_type, str) else None


def _refuse(tx: Tracer, call: Callable[[], object]) -> None:
    """Raises the error that Python raises for a call with wrong arguments."""
    try:
        call()
    except TypeError as error:
        tx.raises(error, exact=True)


_getter(operator.itemgetter, get_items)
_getter(operator.attrgetter, get_attributes)
_getter(operator.methodcaller, call_a_method)
