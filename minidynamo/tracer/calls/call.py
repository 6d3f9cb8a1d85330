"""Owns calls: asks `trace_rules` how to treat a callable, and acts on the answer.

Particular functions are not here: handlers, polyfills and graph functions know them. Python functions are traced by
`tracer/frames/inlining.py`; objects are constructed by `construct.py`."""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from minidynamo.compat import PY313, name_in_errors
from minidynamo.core.directives import IN_GRAPH, own_mark
from minidynamo.errors import an
from minidynamo.tracer.attributes import bind, guard_class_attribute, lookup_on_class
from minidynamo.tracer.attributes.functions import original_of
from minidynamo.tracer.calls.construct import construct
from minidynamo.tracer.calls.operators import folded, involves_tensor
from minidynamo.tracer.calls.tensors import call_tensor_method, torch_attribute
from minidynamo.tracer.calls.torch_overrides import (
    answer_call,
    answer_opaque,
    is_overridable,
    may_be_decided,
)
from minidynamo.tracer.frames.inlining import inline_function, inline_nested, trusted_source
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy import partial_reads
from minidynamo.tracer.lazy.lazy_value import exact_copy, realize_all, unpack_lazy
from minidynamo.tracer.numbers import arithmetic, functions
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import CONSTANT_TYPES, NotConstant, as_constant, from_result, plain_operand
from minidynamo.tracer.records.fix_hints import HINTS_BY_CLASS, OPAQUE
from minidynamo.tracer.records.operator_table import BINARY
from minidynamo.tracer.trace_rules import Action, Rule, rule_for
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
    BuiltinVariable,
    ContextExitVariable,
    ContextVariable,
    FunctionVariable,
    MethodVariable,
    NestedFunctionVariable,
    PartialVariable,
)
from minidynamo.variables.containers import ListVariable, SequenceVariable, TupleVariable
from minidynamo.variables.iterators import LibraryIterator
from minidynamo.variables.objects import ClassVariable, ModuleVariable, ObjectVariable, OpaqueVariable
from minidynamo.variables.tensors import TensorVariable

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]

# Iterators that read all items of their first arguments at construction: class -> number of such arguments.
EAGER_ITERABLES: dict[type, float] = {
    itertools.product: float("inf"),
    **dict.fromkeys((itertools.combinations, itertools.combinations_with_replacement, itertools.permutations), 1),
}
_CODE = (FunctionVariable, NestedFunctionVariable, MethodVariable, PartialVariable, ObjectVariable)


def call(tx: Tracer, function: VariableTracker, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Calls any tracked callable. Arguments and results may be lazy; each handler realizes the arguments it reads."""
    act = _CALLS.get(type(function))
    if act is None:
        handler = registry.find_method(function.python_type, "__call__")
        if handler is not None:
            return call_handler(tx, handler, [function, *args], kwargs)
        cls = function.python_type
        method, owner = lookup_on_class(cls, "__call__")
        if isinstance(method, types.FunctionType) and owner is not None:  # of an enum, say, or of a tuple's subclass
            guard_class_attribute(tx, cls, owner, "__call__", method)
            return call_method(tx, function, "__call__", args, kwargs)
        if owner is None:
            tx.raises(TypeError(f"{name_in_errors(cls)!r} object is not callable"), exact=True)
        what = f"{an(cls.__name__)} is called"
        tx.break_graph("MD206", what, why="minidynamo cannot look into objects of this class.")
    return act(tx, function, args, kwargs)


# Real functions, by rule


def _call_real(tx: Tracer, function: FunctionVariable | BuiltinVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    value = function.value
    rule = rule_for(value)
    if rule.action not in _REALIZING_ACTIONS or functions.is_known(value):
        handler = rule.function if rule.action is Action.HANDLER else None
        args, kwargs = _realize_read_arguments(tx, handler, args, kwargs, before=rule.takes_itself)
    if may_be_decided(tx, value, args):
        answer = answer_call(tx, function, args, kwargs)
        if answer is not None:
            return answer
    if isinstance(value, _METHOD_DESCRIPTORS) and args:
        args = [args[0].realize(), *args[1:]]
        cls, receiver_class = value.__objclass__, args[0].python_type
        if not issubclass(receiver_class, cls):
            tx.raises(TypeError(f"`{value.__name__}` of {cls.__name__} is called with {an(receiver_class.__name__)}"))
        if cls is dict and issubclass(receiver_class, collections.OrderedDict) and value.__name__ in _DICT_MUTATORS:
            why = "The method does not update the order that an OrderedDict keeps."
            tx.break_graph("MD206", f"`dict.{value.__name__}` changes an OrderedDict", why=why)
        if _works_on_storage(args[0], cls):
            return call_built_in(tx, args[0], value.__name__, args[1:], kwargs, cls)
    if isinstance(value, types.MethodWrapperType) and isinstance(value.__self__, types.GetSetDescriptorType):
        return _read_descriptor(tx, value.__self__.__name__, *args)
    number = functions.call(tx, value, args, kwargs)
    if number is not None:
        return number
    if rule.takes_itself:
        args = [function, *args]
    if rule.action is Action.HANDLER:
        assert rule.function is not None
        return call_handler(tx, rule.function, args, kwargs)
    if rule.action is Action.IN_GRAPH and not _needs_inlining(value, args, kwargs):
        return tx.emit(value, args, kwargs)
    if rule.action in (Action.INLINE, Action.IN_GRAPH):
        assert isinstance(function, FunctionVariable)
        return inline_function(tx, function, args, kwargs)
    if rule.action is Action.POLYFILL:
        return _inline_polyfill(tx, rule.function, args, kwargs)
    if rule.action is Action.FOLD:
        return _fold(tx, value, args, kwargs)
    if rule.action is Action.UNWRAP:
        assert isinstance(function, FunctionVariable)
        return tx.call(original_of(tx, function), args, kwargs)
    return _call_unknown(tx, value, args, kwargs, rule)


def _read_descriptor(
    tx: Tracer, name: str, obj: VariableTracker, cls: VariableTracker | None = None
) -> VariableTracker:
    """Returns an attribute that torch reads, as `Tensor.shape.__get__(tensor)` does."""
    found = torch_attribute(tx, obj, name) if isinstance(obj, TensorVariable) else None
    return tx.getattr(obj, name) if found is None else found


def _needs_inlining(value: Any, args: Args, kwargs: Kwargs) -> bool:
    """Returns whether a function of torch.nn.functional calls back into the program, which no graph node can hold."""
    if not isinstance(value, types.FunctionType) or own_mark(value, IN_GRAPH) is not None:
        return False
    return any(isinstance(arg, _CODE) for arg in (*args, *kwargs.values()))


# Actions that trace Python code, whose instructions realize their operands, and the action for unknown functions.
_REALIZING_ACTIONS = (Action.INLINE, Action.POLYFILL, Action.UNWRAP, Action.BREAK)
_DICT_MUTATORS = frozenset(
    "__delitem__ __init__ __ior__ __setitem__ clear pop popitem setdefault update".split()  # noqa: SIM905
)
# Methods of lists that copy a list directly, without a call of its `__iter__`, as slice assignment does.
_COPYING_METHODS = ("extend", "__iadd__") if PY313 else ()
_METHOD_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)


def _works_on_storage(receiver: VariableTracker, cls: type) -> bool:
    """Returns whether a method of `cls`, called on the object, works on its built-in storage: `dict.get(d, key)`."""
    storage = receiver.storage if isinstance(receiver, ObjectVariable) else None
    return storage is not None and cls is not object and issubclass(storage.python_type, cls)


def _call_unknown(tx: Tracer, value: Any, args: Args, kwargs: Kwargs, rule: Rule) -> VariableTracker:
    """Calls a C function without a rule: a method found on a class, or a graph break."""
    if isinstance(value, _METHOD_DESCRIPTORS) and args:
        return call_built_in(tx, args[0], value.__name__, args[1:], kwargs, value.__objclass__)
    owner = getattr(value, "__self__", None)
    if isinstance(value, types.BuiltinFunctionType) and isinstance(owner, type):
        handler = registry.find_method(owner, value.__name__)
        if handler is not None:
            return call_handler(tx, handler, [ClassVariable(owner, source=trusted_source(owner)), *args], kwargs)
        if owner in registry.FOLDABLE_TYPES:
            args, kwargs = realize_all(args, kwargs)
            return _fold(tx, value, args, kwargs)
    if isinstance(value, types.BuiltinFunctionType) and type(owner) in CONSTANT_TYPES and owner is not None:
        return call_built_in(tx, ConstantVariable(owner), value.__name__, args, kwargs, type(owner))
    name = getattr(value, "__qualname__", None) or type(value).__name__
    if name.startswith("pybind11_"):  # pybind11 binds a function as part of a record class
        name = name.rpartition(".")[2]
    args, kwargs = realize_all(args, kwargs)
    is_in_c = not isinstance(value, types.FunctionType)  # a Python function may leave the values of tensors unread
    needs_value = is_in_c and any(involves_tensor(arg) for arg in (*args, *kwargs.values()))
    tx.break_graph(
        rule.code,
        f"{name}() cannot be captured",
        why=rule.reason,
        fix=rule.fix,
        marker="it needs the values of tensors" if needs_value else "",
    )


def call_handler(tx: Tracer, handler: Callable[..., VariableTracker], args: Args, kwargs: Kwargs) -> VariableTracker:
    """Calls a handler; a call with wrong arguments raises TypeError in the program."""
    args, kwargs = _realize_read_arguments(tx, handler, args, kwargs)
    least, most = _arity(handler)
    if kwargs or not least <= len(args) <= most:
        try:
            inspect.signature(handler).bind(tx, *args, **kwargs)
        except TypeError as error:
            tx.raises(error)
    return handler(tx, *args, **kwargs)


def _realize_read_arguments(
    tx: Tracer, handler: Callable[..., Any] | None, args: Args, kwargs: Kwargs, *, before: int = 0
) -> tuple[Args, Kwargs]:
    """Realizes the arguments that a handler reads; moved arguments stay lazy. `before` counts the arguments that the
    handler takes before `args`."""
    if handler not in registry.LAZY_PARAMETERS:
        return realize_all(args, kwargs)
    positions, names, first = _lazy_parameters(handler)
    realized = [
        arg if position in positions or position >= first else arg.realize()
        for position, arg in enumerate(args, before)
    ]
    return realized, {name: value if names(name) else value.realize() for name, value in kwargs.items()}


@functools.cache
def _lazy_parameters(handler: Callable[..., Any]) -> tuple[frozenset[int], Callable[[str], bool], float]:
    """Returns the arguments that a handler only moves: positions after `tx`, a test for keywords, and the position from
    which it moves all positional arguments (infinity if there is none)."""
    moved = registry.LAZY_PARAMETERS[handler]
    parameters = list(inspect.signature(handler).parameters.values())[1:]
    kinds = inspect.Parameter
    named = {p.name for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)}
    moves_kwargs = any(p.kind is kinds.VAR_KEYWORD and p.name in moved for p in parameters)
    starred = (k for k, p in enumerate(parameters) if p.kind is kinds.VAR_POSITIONAL and p.name in moved)
    positions = frozenset(k for k, p in enumerate(parameters) if p.name in moved)
    return positions, lambda name: name in moved if name in named else moves_kwargs, next(starred, float("inf"))


@functools.cache
def _arity(handler: Callable[..., Any]) -> tuple[int, float]:
    """Returns the fewest and the most positional arguments after `tx`; an impossible pair if a keyword is required."""
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
            f"{name}() is called with {an(str(error))}",
            why="Its result is only known when the program runs: minidynamo runs it for constants alone.",
        )
    result = folded(tx, value, [*args, *kwargs.values()], plain, keywords)
    if result is None:
        tx.break_graph("MD207", f"the result of {name}() cannot be captured")
    return result


def _inline_polyfill(tx: Tracer, polyfill: object, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Traces the polyfill of a function or class."""
    assert isinstance(polyfill, types.FunctionType)
    return inline_function(tx, FunctionVariable(polyfill, source=trusted_source(polyfill)), args, kwargs)


# Methods of built-in classes

# Special methods that operators call.
_OPERATORS = {*itertools.chain(*BINARY.values())}


def _call_bound(tx: Tracer, method: BoundBuiltin, args: Args, kwargs: Kwargs) -> VariableTracker:
    return call_built_in(tx, method.receiver, method.name, args, kwargs, method.receiver.python_type)


def call_built_in(
    tx: Tracer, receiver: VariableTracker, name: str, args: Args, kwargs: Kwargs, cls: type
) -> VariableTracker:
    """Calls the built-in method `name` of `cls`, with `receiver` as self."""
    args, kwargs = _realize_read_arguments(tx, registry.find_method(cls, name), args, kwargs, before=1)
    if tx.graph.has_tensor_classes and issubclass(cls, torch.Tensor):
        method = tx.wrap(getattr(torch.Tensor, name, None), None)
        if isinstance(method, FunctionVariable | BuiltinVariable) and is_overridable(method.value):
            answer = answer_call(tx, method, [receiver, *args], kwargs)
            if answer is not None:
                return answer
    if isinstance(receiver, OpaqueVariable) and (found := lookup_on_class(cls, name))[1] is not object:
        if id(found[0]) in registry.OPAQUE_METHODS:
            return call_handler(tx, registry.FUNCTIONS[id(found[0])], [receiver, *args], kwargs)
        answer = answer_opaque(tx, receiver, name, args, kwargs)
        if answer is not None:
            return answer
        tx.break_graph("MD206", f"{cls.__name__}.{name} is used", why=OPAQUE, fix=HINTS_BY_CLASS.get(cls.__name__, ""))
    storage = receiver.storage if isinstance(receiver, ObjectVariable) else None
    if storage is not None and lookup_on_class(cls, name)[1] is not object:
        base = cls if issubclass(storage.python_type, cls) else storage.python_type
        return _call_on_storage(tx, receiver, storage, name, args, kwargs, base)
    unspecialized = receiver
    if isinstance(receiver, NumberVariable) and not kwargs:
        number = functions.call_method(tx, receiver, name, args)
        if number is not None:
            return number
        receiver = arithmetic.specialized(receiver)
    formats = name == "__mod__" and issubclass(receiver.python_type, str | bytes)  # the argument may be any object
    if isinstance(receiver, ConstantVariable) and name in _OPERATORS and not formats:
        args = [*map(plain_operand, args)]
    part = None if kwargs else partial_reads.answer(tx, receiver, name, args)
    if part is not None:
        return part
    handler = registry.find_method(cls, name)
    if handler is not None:
        return call_handler(tx, handler, [receiver, *args], kwargs)
    if isinstance(receiver, TensorVariable):
        return call_tensor_method(tx, receiver, name, args, kwargs)
    if isinstance(receiver, ConstantVariable):
        return _fold(tx, getattr(cls, name), [unspecialized, *args], kwargs)
    tx.break_graph("MD207", f"{cls.__name__}.{name} cannot be captured")


def _call_on_storage(
    tx: Tracer, obj: VariableTracker, storage: VariableTracker, name: str, args: Args, kwargs: Kwargs, cls: type
) -> VariableTracker:
    """Calls a method of `cls`, which is the class of an instance's built-in storage, or a base of that class, as in
    `dict.copy` of an OrderedDict.

    A method that returns the container itself returns the instance."""
    owner = lookup_on_class(cls, name)[1]
    handler = None if owner is None else registry.SUBCLASS_METHODS.get((owner, name))
    if handler is not None:
        return call_handler(tx, handler, [obj, *args], kwargs)
    if cls is list and (name in _COPYING_METHODS or (name == "__setitem__" and args[0].python_type is slice)):
        args = [storage if arg is obj else arg for arg in args]
    result = call_built_in(tx, storage, name, args, kwargs, cls)
    if isinstance(storage, ConstantVariable) and _contains_object(result, storage.unguarded_value):
        return _call_on_subclass(tx, obj, storage, name, args, kwargs) or exact_copy(storage)
    if result is not storage:
        return result
    plain = exact_copy(storage)
    return obj if plain is storage else plain


def _contains_object(result: VariableTracker, value: object) -> bool:
    """Returns whether `result` is the very object `value`, or a sequence with this object in it."""
    if isinstance(result, SequenceVariable):
        return any(_contains_object(item, value) for item in result.items)
    return isinstance(result, ConstantVariable) and result.unguarded_value is value


def _call_on_subclass(
    tx: Tracer, obj: VariableTracker, storage: ConstantVariable, name: str, args: Args, kwargs: Kwargs
) -> VariableTracker | None:
    """Returns the result of a method on a number or text of a subclass; None if an argument is not a constant.

    The result may be, or contain, the receiver itself."""
    cls = storage.python_type
    receiver = type(cls.__name__, (cls,), {})(storage.value)
    try:
        plain, named = [as_constant(arg) for arg in args], {key: as_constant(arg) for key, arg in kwargs.items()}
    except NotConstant:
        return None

    def track(result: Any) -> VariableTracker:
        if result is receiver:
            return obj
        if type(result) is tuple:
            return TupleVariable([*map(track, result)])
        return ListVariable([*map(track, result)]) if type(result) is list else from_result(result, args, plain)

    return track(getattr(cls, name)(receiver, *plain, **named))


def call_method(tx: Tracer, obj: VariableTracker, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Calls a special method, found on the class alone. The result may be lazy."""
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
    return call(tx, bound, args, kwargs)


# Other callables


def _call_method_variable(tx: Tracer, method: MethodVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    return call(tx, method.function, [method.receiver, *args], kwargs)


def _call_partial(tx: Tracer, partial: PartialVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    named = {str(key.token): value for key, value in partial.keywords.items.lazy().items()}
    return call(tx, partial.function, [*partial.args.items.lazy(), *args], {**named, **kwargs})


def _call_object(tx: Tracer, obj: ObjectVariable | ContextVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    if lookup_on_class(obj.python_type, "__call__")[1] is None:
        tx.raises(TypeError(f"{name_in_errors(obj.python_type)!r} object is not callable"), exact=True)
    return call_method(tx, obj, "__call__", args, kwargs)


def _call_class(tx: Tracer, cls: ClassVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    rule = rule_for(cls.value)
    plain = rule.action is Action.FOLD or cls.value in CONSTANT_TYPES
    if rule.action not in (Action.HANDLER, Action.POLYFILL) and not plain:
        return construct(tx, cls, args, kwargs)
    if rule.action is not Action.POLYFILL:
        args, kwargs = _realize_read_arguments(tx, rule.function, args, kwargs)
    number = functions.call(tx, cls.value, args, kwargs)
    if number is not None:
        return number
    if rule.action is Action.HANDLER:
        assert rule.function is not None
        return call_handler(tx, rule.function, args, kwargs)
    if rule.action is Action.POLYFILL:
        return _call_class_polyfill(tx, cls.value, rule.function, args, kwargs)
    return _fold(tx, cls.value, args, kwargs)


def _call_class_polyfill(tx: Tracer, cls: type, polyfill: object, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Calls the polyfill of a class; the result is tracked as an instance of that class if it is an iterator."""
    read_count = EAGER_ITERABLES.get(cls, 0)
    args = [_all_items(tx, arg) if i < read_count else arg for i, arg in enumerate(args)]
    if read_count and "iterable" in kwargs:
        kwargs = {**kwargs, "iterable": _all_items(tx, kwargs["iterable"])}
    instance = _inline_polyfill(tx, polyfill, args, kwargs).realize()
    if instance.python_type is cls or not issubclass(cls, Iterator):
        return instance
    return LibraryIterator(cls, instance, cls, tuple(args), kwargs, items_taken=0 if read_count else None)


def _all_items(tx: Tracer, iterable: VariableTracker) -> VariableTracker:
    return TupleVariable(unpack_lazy(tx, iterable.realize()))


def _leave_context(tx: Tracer, leave: ContextExitVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    return tx.call_method(leave.context, "__exit__", args)


_CALLS: dict[type[VariableTracker], Callable[[Tracer, Any, Args, Kwargs], VariableTracker]] = {
    FunctionVariable: _call_real,
    BuiltinVariable: _call_real,
    NestedFunctionVariable: inline_nested,
    MethodVariable: _call_method_variable,
    BoundBuiltin: _call_bound,
    PartialVariable: _call_partial,
    ClassVariable: _call_class,
    ObjectVariable: _call_object,
    ModuleVariable: _call_object,
    ContextExitVariable: _leave_context,
    ContextVariable: _call_object,
}
