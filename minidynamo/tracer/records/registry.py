"""Owns the tables through which handlers say what they handle, and the decorators that fill them.

It decides nothing: `tracer/trace_rules.py`, `tracer/calls/call.py`, `tracer/wrap.py`, `attributes/` and `iteration` in
`tracer/capture/trace.py` look things up here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, TypeVar

from minidynamo.guards.source import Source
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker

# handler(tx, *args, **kwargs) -> tracker, with the parameters of what it stands for.
Handler = Callable[..., VariableTracker]
# handler(tx, obj, name) -> tracker, or None to go on in Python's usual order.
AttributeHandler = Callable[[Tracer, Any, str], VariableTracker | None]
# advance(tx, iterator) -> next item, or None at the end.
Advance = Callable[[Tracer, Any], VariableTracker | None]
# wrapper(graph, value, source) -> tracker of a value from outside the trace.
Wrapper = Callable[[OutputGraph, Any, Source], VariableTracker]
F = TypeVar("F", bound=Callable[..., Any])

# Keyed by identity: a callable need not be hashable, and equal ones need not mean the same.
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

# What a handler has as it is, by the names of its parameters; the key is missing where it looks at everything.
MOVED: dict[Handler, frozenset[str]] = {}

ATTRIBUTES: dict[type[VariableTracker], AttributeHandler] = {}
ADVANCE: dict[type[VariableTracker], Advance] = {}

WRAPPERS: dict[type, Wrapper] = {}
SUBCLASS_WRAPPERS: dict[type, Wrapper] = {}


def _registers(table: dict[Any, Any], keys: Iterable[Any]) -> Callable[[F], F]:
    """A decorator that enters a function into a table, under keys that nobody has taken."""

    def register(entry: F) -> F:
        for key in keys:
            if key in table:
                raise ValueError(f"what {entry} is for is already handled by {table[key]}")
            table[key] = entry
        return entry

    return register


def _identities(callables: Iterable[Callable[..., Any]]) -> list[int]:
    _kept_alive.extend(callables)
    return [id(target) for target in callables]


# Functions and classes


def function(*callables: Callable[..., Any]) -> Callable[[F], F]:
    """Handle calls of these functions or classes: `handler(tx, *args, **kwargs)`."""
    return _registers(FUNCTIONS, _identities(callables))


def accepts_lazy(*parameters: str) -> Callable[[F], F]:
    """Let a handler have what these parameters get as it is: what the program has only moved is unread."""

    def register(handler: F) -> F:
        MOVED[handler] = frozenset(parameters)
        return handler

    return register


def opaque_method(*methods: Callable[..., Any]) -> Callable[[F], F]:
    """Handle these methods of objects that cannot be looked into: `handler(tx, receiver, *args, **kwargs)`."""
    OPAQUE_METHODS.update(_identities(methods))
    return function(*methods)


def late_function(module: str, qualname: str) -> Callable[[F], F]:
    """Handle calls of a Python function of a library that is imported late or never."""
    return _registers(LATE_FUNCTIONS, [(module, qualname)])


def instances(cls: type) -> Callable[[F], F]:
    """Handle calls of the instances of a built-in class: `handler(tx, instance, *args, **kwargs)`."""
    return _registers(INSTANCES, [cls])


def fold(*callables: Callable[..., Any]) -> None:
    """Run these pure functions while tracing when all arguments are constants."""
    FOLDABLE.update(_identities(callables))


def fold_type(*classes: type) -> None:
    """Run every method and read every attribute of constants of these immutable classes while tracing."""
    FOLDABLE_TYPES.update(classes)


# Methods of built-in classes


def method(cls: type, *names: str) -> Callable[[F], F]:
    """Handle methods of a built-in class and its subclasses that inherit them: `handler(tx, receiver, *args)`."""
    return _registers(METHODS, [(cls, name) for name in names])


def methods(classes: Iterable[type], *names: str) -> Callable[[F], F]:
    """Handle methods of several built-in classes, of each those that it defines itself."""
    return _registers(METHODS, [(cls, name) for cls in classes for name in names if name in vars(cls)])


def subclass_method(cls: type, *names: str) -> Callable[[F], F]:
    """Handle methods of a built-in container that treat instances of subclasses differently.

    `handler(tx, obj, *args)` gets the instance itself, where `method` handlers get the container below it.
    """
    return _registers(SUBCLASS_METHODS, [(cls, name) for name in names])


def find_method(cls: type, name: str) -> Handler | None:
    """The handler of `cls`'s method `name`, or of the base class that `cls` inherits it from."""
    for owner in cls.__mro__:
        handler = METHODS.get((owner, name))
        if handler is not None:
            return handler
        if name in vars(owner):
            found = vars(owner)[name]  # which may be another class's, as the `__init__` that a Protocol's class gets
            below = getattr(found, "__objclass__", owner)
            return METHODS.get((below, name)) if below in owner.__mro__ and found.__name__ == name else None
    return None


# Plain Python twins


def polyfill(*originals: Callable[..., Any]) -> Callable[[F], F]:
    """Trace the decorated plain Python function wherever the program calls one of `originals`, methods included."""
    identities = _identities(originals)
    methods = [(one.__objclass__, one.__name__) for one in originals if hasattr(one, "__objclass__")]

    def register(twin: F) -> F:
        return _registers(POLYFILLS, identities)(_twin_of(METHODS, methods)(twin))

    return register


def polyfill_class_method(name: str, *classes: type) -> Callable[[F], F]:
    """Trace the decorated function, which takes the class, wherever the program calls this class method of these."""
    return _twin_of(METHODS, [(cls, name) for cls in classes])


def _twin_of(table: dict[Any, Any], keys: Iterable[Any]) -> Callable[[F], F]:
    """A decorator that lets handlers trace a twin."""

    def register(twin: F) -> F:
        @_registers(table, keys)
        @accepts_lazy("args", "kwargs")
        def call_twin(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
            return tx.call(twin, args, kwargs, lazy=True)

        return twin

    return register


def polyfill_code(code: CodeType) -> Callable[[F], F]:
    """Trace `twin(function, *args)` for calls of any function with this code, as a library's decorator makes them."""
    return _registers(CODE_POLYFILLS, [code])


# Kinds of tracker


def attributes(*trackers: type[VariableTracker]) -> Callable[[F], F]:
    """Handle attribute reads on these kinds of tracker: `handler(tx, obj, name)`, None to go on as usual."""
    return _registers(ATTRIBUTES, trackers)


def advance(*trackers: type[VariableTracker]) -> Callable[[F], F]:
    """Give the next item of these kinds of iterator: `handler(tx, iterator)`, None at the end."""
    return _registers(ADVANCE, trackers)


# Values from outside


def wrapper(*classes: type) -> Callable[[F], F]:
    """Track values of exactly these classes: `wrapper(graph, value, source)`."""
    return _registers(WRAPPERS, classes)


def subclass_wrapper(*bases: type) -> Callable[[F], F]:
    """Track instances of these classes and of their subclasses, where nothing is registered for the exact class."""
    return _registers(SUBCLASS_WRAPPERS, bases)
