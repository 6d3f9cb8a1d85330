"""Owns the tables through which handlers say what they handle, and the decorators that fill them.

It decides nothing: `trace_rules.py`, `call.py`, `attributes.py` and `iteration` in `trace.py` look things up here.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker

# handler(tx, *args, **kwargs) -> tracker, with the parameters of what it stands for.
Handler = Callable[..., VariableTracker]
# handler(tx, obj, name) -> tracker, or None to go on in Python's usual order.
AttributeHandler = Callable[[Tracer, Any, str], VariableTracker | None]
# advance(tx, iterator) -> next item, or None at the end.
Advance = Callable[[Tracer, Any], VariableTracker | None]
F = TypeVar("F", bound=Callable[..., Any])

# Keyed by identity: a callable need not be hashable, and equal ones need not mean the same.
FUNCTIONS: dict[int, Handler] = {}
METHODS: dict[tuple[type, str], Handler] = {}
SUBCLASS_METHODS: dict[tuple[type, str], Handler] = {}
ATTRIBUTES: dict[type[VariableTracker], AttributeHandler] = {}
ADVANCE: dict[type[VariableTracker], Advance] = {}
POLYFILLS: dict[int, Callable[..., Any]] = {}
CODE_POLYFILLS: dict[CodeType, Callable[..., Any]] = {}
INSTANCES: dict[type, Handler] = {}
LATE_FUNCTIONS: dict[tuple[str, str], Handler] = {}
FOLDABLE: set[int] = set()
FOLDABLE_TYPES: set[type] = set()
_kept_alive: list[object] = []


def function(*callables: Callable[..., Any]) -> Callable[[F], F]:
    """Handle calls of these functions or classes: `handler(tx, *args, **kwargs)`."""

    def register(handler: F) -> F:
        for target in callables:
            _claim(FUNCTIONS, id(target), handler, target)
            _kept_alive.append(target)
        return handler

    return register


def late_function(module: str, qualname: str) -> Callable[[F], F]:
    """Handle calls of a Python function of a library that is imported late or never."""

    def register(handler: F) -> F:
        _claim(LATE_FUNCTIONS, (module, qualname), handler, qualname)
        return handler

    return register


def method(cls: type, *names: str) -> Callable[[F], F]:
    """Handle methods of a built-in class and its subclasses that inherit them: `handler(tx, receiver, *args)`."""

    def register(handler: F) -> F:
        for name in names:
            _claim(METHODS, (cls, name), handler, f"{cls.__name__}.{name}")
        return handler

    return register


def subclass_method(cls: type, *names: str) -> Callable[[F], F]:
    """Handle methods of a built-in container that treat instances of subclasses differently.

    `handler(tx, obj, *args)` gets the instance itself, where `method` handlers get the container below it.
    """

    def register(handler: F) -> F:
        for name in names:
            _claim(SUBCLASS_METHODS, (cls, name), handler, f"{cls.__name__}.{name}")
        return handler

    return register


def attributes(*trackers: type[VariableTracker]) -> Callable[[F], F]:
    """Handle attribute reads on these kinds of tracker: `handler(tx, obj, name)`, None to go on as usual."""

    def register(handler: F) -> F:
        for tracker in trackers:
            _claim(ATTRIBUTES, tracker, handler, tracker.__name__)
        return handler

    return register


def advance(*trackers: type[VariableTracker]) -> Callable[[F], F]:
    """Give the next item of these kinds of iterator: `handler(tx, iterator)`, None at the end."""

    def register(handler: F) -> F:
        for tracker in trackers:
            _claim(ADVANCE, tracker, handler, tracker.__name__)
        return handler

    return register


def polyfill(*callables: Callable[..., Any]) -> Callable[[F], F]:
    """Trace the decorated plain Python function wherever the program calls one of `callables`."""

    def register(twin: F) -> F:
        for target in callables:
            _claim(POLYFILLS, id(target), twin, target)
            _kept_alive.append(target)
        return twin

    return register


def polyfill_code(code: CodeType, twin: Callable[..., Any]) -> None:
    """Trace `twin(function, *args)` for calls of any function with this code, as a library's decorator makes them."""
    CODE_POLYFILLS[code] = twin


def instances(cls: type) -> Callable[[F], F]:
    """Handle calls of the instances of a built-in class: `handler(tx, instance, *args, **kwargs)`."""

    def register(handler: F) -> F:
        _claim(INSTANCES, cls, handler, cls.__name__)
        return handler

    return register


def fold(*callables: Callable[..., Any]) -> None:
    """Run these pure functions while tracing when all arguments are constants."""
    for target in callables:
        FOLDABLE.add(id(target))
        _kept_alive.append(target)


def fold_type(*classes: type) -> None:
    """Run every method and read every attribute of constants of these immutable classes while tracing."""
    FOLDABLE_TYPES.update(classes)


def find_method(cls: type, name: str) -> Handler | None:
    """The handler of `cls`'s method `name`, or of the base class that `cls` inherits it from."""
    for owner in cls.__mro__:
        handler = METHODS.get((owner, name))
        if handler is not None:
            return handler
        if name in vars(owner):
            return None
    return None


def _claim(table: dict[Any, Any], key: object, value: object, shown: object) -> None:
    if key in table:
        raise ValueError(f"{shown} is already handled by {table[key]}")
    table[key] = value
