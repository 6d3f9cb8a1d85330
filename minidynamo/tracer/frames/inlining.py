"""Owns inlining: binding the arguments of a Python function, and tracing its body as a child frame.

`tracer/trace_rules.py` decides whether a function is inlined.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from minidynamo.core.records import record
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant, Item, Source
from minidynamo.tracer.frames.generators import GeneratorVariable
from minidynamo.tracer.frames.interpreter import Frame, Tracer
from minidynamo.tracer.records.constants import NotConstant, from_constant, keyword_key
from minidynamo.tracer.trace_rules import is_trusted_module
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable, FunctionVariable, NestedFunctionVariable
from minidynamo.variables.containers import DictVariable, TupleVariable

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]

INLINE_DEPTH = 60


def trusted_source(value: object) -> Source:
    """Returns the source of a trusted function or class: a constant, without a guard."""
    return Constant(value, getattr(value, "__name__", "value"))


def inline_nested(tx: Tracer, function: NestedFunctionVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Traces the body of a function that was created during tracing."""
    code = function.code
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        tx.break_graph("MD209", f"{code.co_name} is a coroutine", why="An event loop drives it.")
    defaults = function.defaults.items.lazy() if isinstance(function.defaults, TupleVariable) else []
    keyword_defaults = function.kwdefaults.items.lazy() if isinstance(function.kwdefaults, DictVariable) else {}
    named = {key.token: value for key, value in keyword_defaults.items()}
    local_slots = bind_arguments(
        tx, code, function.qualname, args, kwargs, len(defaults), defaults.__getitem__, lambda name: named.get(name)
    )
    cells = dict(zip(code.co_freevars, function.closure))
    return _run(tx, _Body(function, code, function.namespace, local_slots, cells), args, kwargs)


def inline_function(tx: Tracer, function: FunctionVariable, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Traces the body of a Python function that existed before the trace."""
    value = function.value
    code, source = value.__code__, function.source or trusted_source(value)
    defaults = value.__defaults__ or ()
    keyword_defaults = value.__kwdefaults__ or {}
    trusted = is_trusted_module(value.__module__)
    if not trusted:  # tools that reload code replace the code of the old function
        tx.guard(Attr(source, "__code__"), GuardKind.IDENTITY, code)

    def default(position: int) -> VariableTracker:
        # Defaults belong to the last parameters.
        default_source = Item(Attr(source, "__defaults__"), position - len(defaults))
        return _default(tx, defaults[position], default_source, trusted)

    def keyword_default(name: str) -> VariableTracker | None:
        if name not in keyword_defaults:
            return None
        return _default(tx, keyword_defaults[name], Item(Attr(source, "__kwdefaults__"), name), trusted)

    is_polyfill = str(value.__globals__.get("__name__")).startswith("minidynamo.")
    title = None if is_polyfill else value.__qualname__
    local_slots = bind_arguments(tx, code, title, args, kwargs, len(defaults), default, keyword_default)
    cells = {}
    for position, (name, cell) in enumerate(zip(code.co_freevars, value.__closure__ or ())):
        tracked = tx.wrap(cell, Item(Attr(source, "__closure__"), position))
        assert isinstance(tracked, CellVariable)
        cells[name] = tracked
    return _run(tx, _Body(function, code, value.__globals__, local_slots, cells), args, kwargs)


def _default(tx: Tracer, value: object, source: Source, trusted: bool) -> VariableTracker:
    if trusted:
        try:
            return from_constant(value, literal=True)
        except NotConstant:
            pass
    return tx.lazy(value, source)


@record(frozen=True, eq=False)
class _Body:
    """A function that is about to be inlined, with bound arguments."""

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
    trusted = is_trusted_module(body.namespace.get("__name__"))
    frame = Frame(tx, body.code, body.namespace, body.local_slots, body.cells, trusted=trusted)
    if not body.code.co_flags & inspect.CO_GENERATOR:
        return frame.run()
    frame.resume()  # up to RETURN_GENERATOR
    return GeneratorVariable(frame, body.function, tuple(args), kwargs)


# Arguments


def bind_arguments(
    tx: Tracer,
    code: types.CodeType,
    title: str | None,
    args: Args,
    kwargs: Kwargs,
    default_count: int,
    default: Callable[[int], VariableTracker],
    keyword_default: Callable[[str], VariableTracker | None],
) -> dict[str, VariableTracker]:
    """Returns the locals with which a function starts. A call that does not fit raises TypeError in the program: with
    Python's own message if the program calls the function itself, under the name `title`."""

    def refuse() -> NoReturn:
        if title is None:
            tx.raises(TypeError(f"{code.co_name}() is called with other arguments than it takes"))
        defaults = {name: None for name in keyword_only if keyword_default(name) is not None}
        tx.raises(_python_error(code, title, len(args), kwargs, default_count, defaults), exact=True)

    count = code.co_argcount
    positional, keyword_only = code.co_varnames[:count], code.co_varnames[count : count + code.co_kwonlyargcount]
    starred = iter(code.co_varnames[count + code.co_kwonlyargcount :])
    bound = dict(zip(positional, args))
    if code.co_flags & inspect.CO_VARARGS:
        bound[next(starred)] = TupleVariable(args[count:])
    elif len(args) > count:
        refuse()
    names = {*positional[code.co_posonlyargcount :], *keyword_only}
    if names & kwargs.keys() & bound.keys():
        refuse()
    bound |= {name: value for name, value in kwargs.items() if name in names}
    extra = {name: value for name, value in kwargs.items() if name not in names}
    if code.co_flags & inspect.CO_VARKEYWORDS:
        named = {keyword_key(key): value for key, value in extra.items()}
        bound[next(starred)] = DictVariable(named)
    elif extra:
        refuse()
    first_default = count - default_count
    for position in range(len(args), count):
        if positional[position] not in bound:
            if position < first_default:
                refuse()
            bound[positional[position]] = default(position - first_default)
    for name in keyword_only:
        value = bound.get(name) or keyword_default(name)
        if value is None:
            refuse()
        bound[name] = value
    return bound


_EMPTY_FUNCTION = (lambda: None).__code__
_STARRED = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def _python_error(
    code: types.CodeType, title: str, count: int, kwargs: Iterable[str], default_count: int, keyword_defaults: Any
) -> TypeError:
    """Returns Python's error for a call with `count` positional arguments that does not fit: an empty function with the
    same signature raises it."""
    starred = code.co_flags & _STARRED
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + starred.bit_count()]
    same_signature = _EMPTY_FUNCTION.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_varnames=names,
        co_nlocals=len(names),
        co_flags=_EMPTY_FUNCTION.co_flags | starred,
    )
    empty = types.FunctionType(same_signature, {}, code.co_name, (None,) * default_count)
    empty.__qualname__, empty.__kwdefaults__ = title, keyword_defaults
    try:
        empty(*[None] * count, **dict.fromkeys(map(str, kwargs)))
    except TypeError as error:
        return error.with_traceback(None)
    raise AssertionError(f"{title} takes these arguments")
