"""Owns the tables of handlers, and decorators for registration.

Decides nothing: `tracer/trace_rules.py`, `tracer/calls/call.py`, `tracer/wrap.py`, `attributes/` and `iteration` in
`tracer/capture/trace.py` look handlers up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, TypeVar

from minidynamo.guards.source import Source
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.variables.base import VariableTracker

# handler(tx, *args, **kwargs) -> tracker, with the parameters of the handled function.
Handler = Callable[..., VariableTracker]
# handler(tx, obj, name) -> tracker, or None to go on in Python's usual order.
AttributeHandler = Callable[[Tracer, Any, str], VariableTracker | None]
# advance(tx, iterator) -> next item, or None at the end.
Advance = Callable[[Tracer, Any], VariableTracker | None]
# wrapper(graph, value, source) -> tracker of an external value.
Wrapper = Callable[[OutputGraph, Any, Source], VariableTracker]
F = TypeVar("F", bound=Callable[..., Any])

# Keyed by identity: a callable may be unhashable, and equal callables may differ in meaning.
FUNCTIONS: dict[int, Handler] = {}
POLYFILLS: dict[int, Callable[..., Any]] = {}
OPAQUE_METHODS: set[int] = set()
FOLDABLE: set[int] = set()
_kept_alive: list[object] = []

METHODS: dict[tuple[type, str], Handler] = {}
SUBCLASS_METHODS: dict[tuple[type, str], Handler] = {}
LATE_FUNCTIONS: dict[tuple[str, str], Handler] = {}
CODE_POLYFILLS: dict[CodeType, Callable[..., Any]] = {}
INSTANCES: dict[type, Handler] = {}
FOLDABLE_TYPES: set[type] = set()

# The parameters for which a handler accepts lazy values; a handler without a key realizes all.
LAZY_PARAMETERS: dict[Handler, frozenset[str]] = {}

ATTRIBUTES: dict[type[VariableTracker], AttributeHandler] = {}
ADVANCE: dict[type[VariableTracker], Advance] = {}

WRAPPERS: dict[type, Wrapper] = {}
SUBCLASS_WRAPPERS: dict[type, Wrapper] = {}


def _registers(table: dict[Any, Any], keys: Iterable[Any]) -> Callable[[F], F]:
    """Returns a decorator that adds a function to a table, and refuses keys that are taken."""

    def register(entry: F) -> F:
        for key in keys:
            if key in table:
                raise ValueError(f"{entry} and {table[key]} are registered for the same key")
            table[key] = entry
        return entry

    return register


def _identities(callables: Iterable[Callable[..., Any]]) -> list[int]:
    _kept_alive.extend(callables)
    return [id(target) for target in callables]


# Functions and classes


def function(*callables: Callable[..., Any]) -> Callable[[F], F]:
    """Registers a handler for calls of these functions or classes: `handler(tx, *args, **kwargs)`."""
    return _registers(FUNCTIONS, _identities(callables))


def accepts_lazy(*parameters: str) -> Callable[[F], F]:
    """Lets a handler take lazy values for these parameters."""

    def register(handler: F) -> F:
        LAZY_PARAMETERS[handler] = frozenset(parameters)
        return handler

    return register


def opaque_method(*methods: Callable[..., Any]) -> Callable[[F], F]:
    """Registers a handler for these methods of opaque objects: `handler(tx, receiver, *args, **kwargs)`."""
    OPAQUE_METHODS.update(_identities(methods))
    return function(*methods)


def late_function(module: str, qualname: str) -> Callable[[F], F]:
    """Registers a handler for a Python function that is imported late or never, or that imports the tracer late."""
    return _registers(LATE_FUNCTIONS, [(module, qualname)])


def instances(cls: type) -> Callable[[F], F]:
    """Registers a handler for calls of the instances of a built-in class: `handler(tx, instance, *args, **kwargs)`."""
    return _registers(INSTANCES, [cls])


def fold(*callables: Callable[..., Any]) -> None:
    """Runs these pure functions during tracing if all arguments are constants."""
    FOLDABLE.update(_identities(callables))


def fold_type(*classes: type) -> None:
    """Runs every method and reads every attribute of constants of these immutable classes during tracing."""
    FOLDABLE_TYPES.update(classes)


# Methods of built-in classes


def method(cls: type, *names: str) -> Callable[[F], F]:
    """Registers a handler for methods of a built-in class and of subclasses that inherit the methods: `handler(tx,
    receiver, *args)`."""
    return _registers(METHODS, [(cls, name) for name in names])


def methods(classes: Iterable[type], *names: str) -> Callable[[F], F]:
    """Registers a handler for methods of several built-in classes, for each class that defines the method itself."""
    return _registers(METHODS, [(cls, name) for cls in classes for name in names if name in vars(cls)])


def subclass_method(cls: type, *names: str) -> Callable[[F], F]:
    """Registers a handler for methods of a built-in container that treat instances of subclasses differently.

    `handler(tx, obj, *args)` gets the instance itself; `method` handlers get the underlying container.
    """
    return _registers(SUBCLASS_METHODS, [(cls, name) for name in names])


def find_method(cls: type, name: str) -> Handler | None:
    """Returns the handler of `cls`'s method `name`, or of the base class from which `cls` inherits the method."""
    for owner in cls.__mro__:
        handler = METHODS.get((owner, name))
        if handler is not None:
            return handler
        if name in vars(owner):
            found = vars(owner)[name]  # maybe a method of another class, such as the `__init__` of a Protocol
            base = getattr(found, "__objclass__", owner)
            return METHODS.get((base, name)) if base in owner.__mro__ and found.__name__ == name else None
    return None


# Polyfills


def polyfill(*originals: Callable[..., Any]) -> Callable[[F], F]:
    """Traces the decorated plain Python function wherever the program calls one of `originals`, methods included."""
    identities = _identities(originals)
    methods = [
        (original.__objclass__, original.__name__) for original in originals if hasattr(original, "__objclass__")
    ]

    def register(implementation: F) -> F:
        return _registers(POLYFILLS, identities)(_polyfill_handler(METHODS, methods)(implementation))

    return register


def polyfill_class_method(name: str, *classes: type) -> Callable[[F], F]:
    """Traces the decorated function, whose first argument is the class, wherever the program calls this class method of
    one of `classes`."""
    return _polyfill_handler(METHODS, [(cls, name) for cls in classes])


def _polyfill_handler(table: dict[Any, Any], keys: Iterable[Any]) -> Callable[[F], F]:
    """Returns a decorator: the registered handler traces the polyfill."""

    def register(implementation: F) -> F:
        @_registers(table, keys)
        @accepts_lazy("args", "kwargs")
        def call_polyfill(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
            return tx.call(implementation, args, kwargs, lazy=True)

        return implementation

    return register


def polyfill_code(code: CodeType) -> Callable[[F], F]:
    """Traces `polyfill(function, *args)` for calls of any function with this code, as a library's decorator creates
    them."""
    return _registers(CODE_POLYFILLS, [code])


# Kinds of tracker


def attributes(*trackers: type[VariableTracker]) -> Callable[[F], F]:
    """Registers a handler for attribute reads on these kinds of tracker: `handler(tx, obj, name)`; None means the usual
    order."""
    return _registers(ATTRIBUTES, trackers)


def advance(*trackers: type[VariableTracker]) -> Callable[[F], F]:
    """Registers a handler for the next item of these kinds of iterator: `handler(tx, iterator)`, None at the end."""
    return _registers(ADVANCE, trackers)


# External values


def wrapper(*classes: type) -> Callable[[F], F]:
    """Registers a wrapper for values of exactly these classes: `wrapper(graph, value, source)`."""
    return _registers(WRAPPERS, classes)


def subclass_wrapper(*bases: type) -> Callable[[F], F]:
    """Registers a wrapper for instances of these classes and of subclasses, unless the exact class has a wrapper."""
    return _registers(SUBCLASS_WRAPPERS, bases)


def cannot_trace(what: str, why: str, fix: str = "") -> Any:
    """Breaks the graph at the call of the polyfill. The tracer handles this function; it never runs while tracing."""
    raise NotImplementedError(f"{what}: {why}")
