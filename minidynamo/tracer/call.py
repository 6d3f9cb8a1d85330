"""Owns calls: it asks `trace_rules` what a callable is, binds arguments, and inlines Python functions as child frames.

It knows no particular function; those are handlers, polyfills and graph functions.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant, Item, Source
from minidynamo.steering import IN_GRAPH, own_mark
from minidynamo.tracer import numbers, registry
from minidynamo.tracer.attributes import bind, guard_class_attribute, lookup_on_class
from minidynamo.tracer.constants import CONSTANT_TYPES, NotConstant, as_constant, from_constant, key_of
from minidynamo.tracer.construct import construct
from minidynamo.tracer.generators import GeneratorVariable
from minidynamo.tracer.interpreter import Frame
from minidynamo.tracer.operators import folded, involves_tensor
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.tensors import call_tensor_method
from minidynamo.tracer.trace_rules import Action, Rule, is_trusted_module, rule_for
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
    BuiltinVariable,
    CellVariable,
    FunctionVariable,
    MethodVariable,
    NestedFunctionVariable,
    PartialVariable,
)
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, TupleVariable
from minidynamo.variables.contexts import ContextExitVariable, ContextVariable
from minidynamo.variables.iterators import LibraryIterator
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ClassVariable, ModuleVariable, ObjectVariable, OpaqueVariable
from minidynamo.variables.tensors import TensorVariable

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]

INLINE_DEPTH = 60

# Iterators that look at all items of their first arguments when they are made.
TAKES_ALL_ITEMS: dict[type, float] = {
    itertools.product: float("inf"),
    **dict.fromkeys((itertools.combinations, itertools.combinations_with_replacement, itertools.permutations), 1),
}
_CODE = (FunctionVariable, NestedFunctionVariable, MethodVariable, PartialVariable, ObjectVariable)


def call(tx: Tracer, function: VariableTracker, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Call any tracked callable."""
    act = _CALLS.get(type(function))
    if act is None:
        handler = registry.find_method(function.python_type, "__call__")
        if handler is not None:
            return call_handler(tx, handler, [function, *args], kwargs)
        name = function.python_type.__name__
        tx.break_graph("MD206", f"a {name} is called", why="minidynamo cannot look into objects of this class.")
    return act(tx, function, args, kwargs)


# Real functions, by rule


def _call_real(tx: Tracer, function: FunctionVariable | BuiltinVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    value = function.value
    if isinstance(value, _METHODS_OF_CLASSES) and args and _works_on_storage(args[0], value.__objclass__):
        return call_built_in(tx, args[0], value.__name__, args[1:], kwargs, value.__objclass__)
    number = numbers.call(tx, value, args, kwargs)
    if number is not None:
        return number
    rule = rule_for(value)
    if rule.takes_itself:
        args = [function, *args]
    if rule.action is Action.HANDLER:
        assert rule.function is not None
        return call_handler(tx, rule.function, args, kwargs)
    if rule.action is Action.IN_GRAPH and not _takes_code(value, args, kwargs):
        return tx.emit(value, args, kwargs)
    if rule.action in (Action.INLINE, Action.IN_GRAPH):
        assert isinstance(function, FunctionVariable)
        return inline_function(tx, function, args, kwargs)
    if rule.action is Action.POLYFILL:
        return _inline_twin(tx, rule.function, args, kwargs)
    if rule.action is Action.FOLD:
        return _fold(tx, value, args, kwargs)
    if rule.action is Action.UNWRAP:
        wrapped = tx.wrap(
            value.__dict__["__wrapped__"], Attr(function.source, "__wrapped__") if function.source else None
        )
        return tx.call(wrapped, args, kwargs)
    return _call_unknown(tx, value, args, kwargs, rule)


def _takes_code(value: Any, args: Args, kwargs: Kwargs) -> bool:
    """Whether a function of torch.nn.functional calls back into the program: a node cannot hold what it calls."""
    if not isinstance(value, types.FunctionType) or own_mark(value, IN_GRAPH) is not None:
        return False
    return any(isinstance(arg, _CODE) for arg in (*args, *kwargs.values()))


_METHODS_OF_CLASSES = (types.MethodDescriptorType, types.WrapperDescriptorType)


def _works_on_storage(receiver: VariableTracker, cls: type) -> bool:
    """Whether a method of `cls` called on the object is one of the container below it: `dict.get(d, key)`."""
    storage = receiver.storage if isinstance(receiver, ObjectVariable) else None
    return storage is not None and cls is not object and issubclass(storage.python_type, cls)


def _constant(value: object) -> Source:
    return Constant(value, getattr(value, "__name__", "value"))


def _call_unknown(tx: Tracer, value: Any, args: Args, kwargs: Kwargs, rule: Rule) -> VariableTracker:
    """A C function without a rule: a method looked up on a class, or a graph break."""
    if isinstance(value, _METHODS_OF_CLASSES) and args:
        return call_built_in(tx, args[0], value.__name__, args[1:], kwargs, value.__objclass__)
    owner = getattr(value, "__self__", None)
    if isinstance(value, types.BuiltinFunctionType) and isinstance(owner, type):
        handler = registry.find_method(owner, value.__name__)
        if handler is not None:
            return call_handler(tx, handler, [ClassVariable(owner, source=_constant(owner)), *args], kwargs)
        if owner in registry.FOLDABLE_TYPES:
            return _fold(tx, value, args, kwargs)
    if isinstance(value, types.BuiltinFunctionType) and type(owner) in CONSTANT_TYPES and owner is not None:
        return call_built_in(tx, ConstantVariable(owner), value.__name__, args, kwargs, type(owner))
    name = getattr(value, "__qualname__", None) or type(value).__name__
    needs_value = any(involves_tensor(arg) for arg in (*args, *kwargs.values()))
    tx.break_graph(
        rule.code,
        f"{name}() cannot be captured",
        why=rule.reason,
        marker="it needs the values of tensors" if needs_value else "",
    )


def call_handler(tx: Tracer, handler: Callable[..., VariableTracker], args: Args, kwargs: Kwargs) -> VariableTracker:
    """Call a handler; a call with wrong arguments raises TypeError in the program."""
    least, most = _arity(handler)
    if kwargs or not least <= len(args) <= most:
        try:
            inspect.signature(handler).bind(tx, *args, **kwargs)
        except TypeError as error:
            tx.raises(error)
    return handler(tx, *args, **kwargs)


@functools.cache
def _arity(handler: Callable[..., Any]) -> tuple[int, float]:
    """Fewest and most positional arguments behind `tx`; impossible ones when there are required keywords."""
    parameters = list(inspect.signature(handler).parameters.values())[1:]
    kinds = inspect.Parameter
    if any(p.kind is kinds.KEYWORD_ONLY and p.default is kinds.empty for p in parameters):
        return 1, 0
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    return sum(p.default is kinds.empty for p in positional), float("inf") if variadic else len(positional)


def _fold(tx: Tracer, value: Callable[..., Any], args: Args, kwargs: Kwargs) -> VariableTracker:
    name = getattr(value, "__name__", type(value).__name__)
    try:
        plain = [as_constant(arg) for arg in args]
        keywords = {key: as_constant(arg) for key, arg in kwargs.items()}
    except NotConstant as error:
        tx.break_graph(
            "MD208",
            f"{name}() is called with a {error}",
            why="Its result is only known when the program runs: minidynamo runs it for constants alone.",
        )
    result = folded(tx, value, plain, keywords)
    if result is None:
        tx.break_graph("MD207", f"the result of {name}() cannot be captured")
    return result


def _inline_twin(tx: Tracer, twin: object, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Trace the plain Python twin of a function or class."""
    assert isinstance(twin, types.FunctionType)
    return inline_function(tx, FunctionVariable(twin, source=_constant(twin)), args, kwargs)


# Methods of built-in classes


def _call_bound(tx: Tracer, method: BoundBuiltin, args: Args, kwargs: Kwargs) -> VariableTracker:
    return call_built_in(tx, method.receiver, method.name, args, kwargs, method.receiver.python_type)


def call_built_in(
    tx: Tracer, receiver: VariableTracker, name: str, args: Args, kwargs: Kwargs, cls: type
) -> VariableTracker:
    """Call the built-in method that `cls` has under `name`, with `receiver` as its self."""
    if isinstance(receiver, OpaqueVariable) and lookup_on_class(cls, name)[1] is not object:
        why = "minidynamo passes objects of this class on but cannot look into them."
        tx.break_graph("MD206", f"{cls.__name__}.{name} is used", why=why)
    storage = receiver.storage if isinstance(receiver, ObjectVariable) else None
    if storage is not None and lookup_on_class(cls, name)[1] is not object:
        return _call_on_storage(tx, receiver, storage, name, args, kwargs)
    if isinstance(receiver, NumberVariable) and not kwargs:
        number = numbers.call_method(tx, receiver, name, args)
        if number is not None:
            return number
        receiver = numbers.pinned(receiver)
    handler = registry.find_method(cls, name)
    if handler is not None:
        return call_handler(tx, handler, [receiver, *args], kwargs)
    if isinstance(receiver, TensorVariable):
        return call_tensor_method(tx, receiver, name, args, kwargs)
    if isinstance(receiver, ConstantVariable):
        return _fold(tx, functools.partial(getattr(type(receiver.value), name), receiver.value), args, kwargs)
    tx.break_graph("MD207", f"{cls.__name__}.{name} cannot be captured")


def _call_on_storage(
    tx: Tracer, obj: VariableTracker, storage: VariableTracker, name: str, args: Args, kwargs: Kwargs
) -> VariableTracker:
    """A method of the built-in class below an instance; what gives the container itself back gives the instance."""
    cls = storage.python_type
    handler = registry.SUBCLASS_METHODS.get((cls, name))
    if handler is not None:
        return call_handler(tx, handler, [obj, *args], kwargs)
    result = call_built_in(tx, storage, name, args, kwargs, cls)
    return obj if result is storage else result


def call_method(tx: Tracer, obj: VariableTracker, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Call a special method: looked up on the class alone."""
    if isinstance(obj, TensorVariable):
        return call_built_in(tx, obj, name, args, kwargs, obj.python_type)
    cls = obj.python_type
    found, owner = lookup_on_class(cls, name)
    if owner is None:
        tx.raises(TypeError(f"'{cls.__name__}' object has no {name}"))
    if isinstance(obj, ObjectVariable):
        guard_class_attribute(tx, cls, owner, name, found)
    bound = bind(tx, found, owner, obj, cls, name)
    assert bound is not None
    return tx.call(bound, args, kwargs)


# Other callables


def _call_method_variable(tx: Tracer, method: MethodVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    return call(tx, method.function, [method.receiver, *args], kwargs)


def _call_partial(tx: Tracer, partial: PartialVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    return call(tx, partial.function, [*partial.args.items, *args], {**partial.named, **kwargs})


def _call_object(tx: Tracer, obj: ObjectVariable | ContextVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    if lookup_on_class(obj.python_type, "__call__")[1] is None:
        tx.raises(TypeError(f"'{obj.python_type.__name__}' object is not callable"), exact=True)
    return call_method(tx, obj, "__call__", args, kwargs)


def _call_class(tx: Tracer, cls: ClassVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    number = numbers.call(tx, cls.value, args, kwargs)
    if number is not None:
        return number
    rule = rule_for(cls.value)
    if rule.action is Action.HANDLER:
        assert rule.function is not None
        return call_handler(tx, rule.function, args, kwargs)
    if rule.action is Action.POLYFILL:
        return _call_class_twin(tx, cls.value, rule.function, args, kwargs)
    if rule.action is Action.FOLD or cls.value in CONSTANT_TYPES:
        return _fold(tx, cls.value, args, kwargs)
    return construct(tx, cls, args, kwargs)


def _call_class_twin(tx: Tracer, cls: type, twin: object, args: Args, kwargs: Kwargs) -> VariableTracker:
    """What the twin of a class gives; an iterator keeps the class that the program asked for."""
    taken = TAKES_ALL_ITEMS.get(cls, 0)
    args = [TupleVariable(tx.unpack(arg)) if i < taken else arg for i, arg in enumerate(args)]
    if taken and "iterable" in kwargs:
        kwargs = {**kwargs, "iterable": TupleVariable(tx.unpack(kwargs["iterable"]))}
    made = _inline_twin(tx, twin, args, kwargs)
    if made.python_type is cls or not issubclass(cls, Iterator):
        return made
    return LibraryIterator(cls, made, cls, tuple(args), kwargs)


def _leave_context(tx: Tracer, leave: ContextExitVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    return tx.call_method(leave.context, "__exit__", args)


# Inlining


def _call_nested(tx: Tracer, function: NestedFunctionVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    code = function.code
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        tx.break_graph("MD209", f"{code.co_name} is a coroutine", why="An event loop drives it.")
    defaults = function.defaults.items if isinstance(function.defaults, TupleVariable) else []
    keyword_defaults = function.kwdefaults.items if isinstance(function.kwdefaults, DictVariable) else {}
    named = {key.token: value for key, value in keyword_defaults.items()}
    local_slots = bind_arguments(
        tx, code, args, kwargs, len(defaults), defaults.__getitem__, lambda name: named.get(name)
    )
    cells = dict(zip(code.co_freevars, function.closure))
    return _run(tx, _Body(function, code, function.namespace, local_slots, cells), args, kwargs)


def inline_function(tx: Tracer, function: FunctionVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Trace the body of a Python function that existed before the trace."""
    value = function.value
    code, source = value.__code__, function.source or _constant(value)
    defaults = value.__defaults__ or ()
    keyword_defaults = value.__kwdefaults__ or {}
    trusted = is_trusted_module(value.__module__)
    if not trusted:  # what reloads code while a program runs puts new code into the old function
        tx.guard(Attr(source, "__code__"), GuardKind.IDENTITY, code)

    def default(position: int) -> VariableTracker:
        return _default(tx, defaults[position], Item(Attr(source, "__defaults__"), position), trusted)

    def keyword_default(name: str) -> VariableTracker | None:
        if name not in keyword_defaults:
            return None
        return _default(tx, keyword_defaults[name], Item(Attr(source, "__kwdefaults__"), name), trusted)

    local_slots = bind_arguments(tx, code, args, kwargs, len(defaults), default, keyword_default)
    cells = {}
    for position, (name, cell) in enumerate(zip(code.co_freevars, value.__closure__ or ())):
        tracked = tx.wrap(cell, Item(Attr(source, "__closure__"), position))
        assert isinstance(tracked, CellVariable)
        cells[name] = tracked
    return _run(tx, _Body(function, code, value.__globals__, local_slots, cells), args, kwargs)


def _default(tx: Tracer, value: object, source: Source, trusted: bool) -> VariableTracker:
    if trusted:
        try:
            return from_constant(value)
        except NotConstant:
            pass
    return tx.wrap(value, source)


@dataclass(frozen=True, eq=False)
class _Body:
    """A function that is about to be inlined, its arguments bound."""

    function: VariableTracker
    code: types.CodeType
    namespace: dict[str, Any]
    local_slots: dict[str, VariableTracker]
    cells: dict[str, CellVariable]


def _run(tx: Tracer, body: _Body, args: Args, kwargs: Kwargs) -> VariableTracker:
    if len(tx.frames) > INLINE_DEPTH:
        tx.break_graph(
            "MD210", f"calls are nested more than {INLINE_DEPTH} deep", why="Each is traced into its caller."
        )
    caller = tx.frames[-1]
    assert isinstance(caller, Frame)
    trusted = is_trusted_module(body.namespace.get("__name__"))
    frame = Frame(tx, body.code, body.namespace, body.local_slots, body.cells, caller.chain, trusted=trusted)
    if not body.code.co_flags & inspect.CO_GENERATOR:
        return frame.run()
    frame.resume()  # up to RETURN_GENERATOR
    return GeneratorVariable(frame, body.function, tuple(args), kwargs)


def bind_arguments(
    tx: Tracer,
    code: types.CodeType,
    args: Args,
    kwargs: Kwargs,
    default_count: int,
    default: Callable[[int], VariableTracker],
    keyword_default: Callable[[str], VariableTracker | None],
) -> dict[str, VariableTracker]:
    """The locals that a function starts with. A call that does not fit raises TypeError in the program."""
    names, count, name = code.co_varnames, code.co_argcount, code.co_name
    keyword_only = names[count : count + code.co_kwonlyargcount]
    rest = count + code.co_kwonlyargcount
    bound = dict(zip(names[:count], args))
    if code.co_flags & inspect.CO_VARARGS:
        bound[names[rest]] = TupleVariable(list(args[count:]))
        rest += 1
    elif len(args) > count:
        tx.raises(TypeError(f"{name}() takes {count} positional arguments but {len(args)} were given"))
    by_keyword = {*names[code.co_posonlyargcount : count], *keyword_only}
    extra: Kwargs = {}
    for key, value in kwargs.items():
        if key not in by_keyword:
            extra[key] = value
        elif key in bound:
            tx.raises(TypeError(f"{name}() got multiple values for argument {key!r}"))
        else:
            bound[key] = value
    if code.co_flags & inspect.CO_VARKEYWORDS:
        items = {key_of(ConstantVariable(key)): value for key, value in extra.items()}
        bound[names[rest]] = DictVariable(items)
    elif extra:
        tx.raises(TypeError(f"{name}() got an unexpected keyword argument {next(iter(extra))!r}"))
    for position in range(len(args), count):
        if names[position] not in bound:
            if position < count - default_count:
                tx.raises(TypeError(f"{name}() missing a required argument: {names[position]!r}"))
            bound[names[position]] = default(position - count + default_count)
    for key in keyword_only:
        value_or_none = bound.get(key) or keyword_default(key)
        if value_or_none is None:
            tx.raises(TypeError(f"{name}() missing a required keyword-only argument: {key!r}"))
        bound[key] = value_or_none
    return bound


_CALLS: dict[type[VariableTracker], Callable[[Tracer, Any, Args, Kwargs], VariableTracker]] = {
    FunctionVariable: _call_real,
    BuiltinVariable: _call_real,
    NestedFunctionVariable: _call_nested,
    MethodVariable: _call_method_variable,
    BoundBuiltin: _call_bound,
    PartialVariable: _call_partial,
    ClassVariable: _call_class,
    ObjectVariable: _call_object,
    ModuleVariable: _call_object,
    ContextExitVariable: _leave_context,
    ContextVariable: _call_object,
}
