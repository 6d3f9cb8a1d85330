"""Owns calls of small functions of the standard library: text, paths, patterns, clocks, the environment.

Pure functions run on constants during capture. Functions that read external state break the graph, except reads of
environment variables: each read variable is guarded.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import string
import struct
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

from minidynamo.errors import an
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant, InstanceAttr, Item
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.iterators import CALLABLE_ITERATOR
from minidynamo.tracer.handlers.values import constant, expect_constant
from minidynamo.tracer.numbers.formatting import joined
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import Slots
from minidynamo.variables.iterators import LibraryIterator, SequenceIterator
from minidynamo.variables.objects import ObjectVariable

registry.fold(str.maketrans, bytes.maketrans)
registry.fold(re.compile, re.escape, re.findall, re.fullmatch, re.match, re.search, re.split, re.sub, re.subn)
registry.fold(textwrap.dedent, textwrap.fill, textwrap.indent, textwrap.shorten, textwrap.wrap, string.capwords)
registry.fold(os.path.basename, os.path.commonprefix, os.path.dirname, os.path.isabs, os.path.join, os.path.normpath)
registry.fold(os.path.split, os.path.splitext, os.fspath, sys.intern)
registry.fold(json.dumps, json.loads, struct.calcsize, struct.pack, struct.unpack)
registry.fold_type(re.Pattern, re.Match)


# --- text -----------------------------------------------------------------------------------------------------------


def _join(cls: type) -> registry.Handler:
    def join(tx: Tracer, self: VariableTracker, iterable: VariableTracker, /) -> VariableTracker:
        items = tx.unpack(iterable)
        text = joined(tx, self.value, items) if cls is str and isinstance(self, ConstantVariable) else None
        if text is not None:
            return text
        parts = [expect_constant(tx, part, "text that is joined") for part in items]
        try:
            return constant(cls.join(expect_constant(tx, self, "text"), parts), *items)  # type: ignore[attr-defined]
        except TypeError as error:
            tx.raises(error, exact=True)

    return join


registry.method(str, "join")(_join(str))
registry.method(bytes, "join")(_join(bytes))


def _matches(
    tx: Tracer, find: Callable[..., Any], args: tuple[VariableTracker, ...], kwargs: dict[str, VariableTracker]
) -> VariableTracker:
    arguments = (*args, *kwargs.values())
    try:
        found = [*find(*map(as_constant, args), **{name: as_constant(arg) for name, arg in kwargs.items()})]
    except NotConstant as error:
        tx.break_graph("MD208", f"re.finditer() is called with {an(str(error))}", why="It is only known when it runs.")
    except (TypeError, re.error) as error:
        tx.raises(error)
    matches = SequenceIterator(Slots(constant(match, *arguments) for match in found))
    return LibraryIterator(CALLABLE_ITERATOR, matches, find, args, kwargs, items_taken=0)


@registry.function(re.finditer)
def _finditer(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    return _matches(tx, re.finditer, args, kwargs)


@registry.method(re.Pattern, "finditer")
def _pattern_finditer(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    return _matches(tx, re.Pattern.finditer, args, kwargs)


# --- clocks ---------------------------------------------------------------------------------------------------------


def _reads_the_clock(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    tx.break_graph(
        "MD233",
        "reading the clock",
        why="The program needs the time at which this line runs.",
        fix="Move the call out of the compiled function, or accept the break.",
    )


_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time", "localtime", "gmtime", "sleep")
for _clock in _CLOCKS:
    registry.function(getattr(time, _clock))(_reads_the_clock)
    if hasattr(time, f"{_clock}_ns"):
        registry.function(getattr(time, f"{_clock}_ns"))(_reads_the_clock)
registry.method(datetime.datetime, "now", "utcnow")(_reads_the_clock)
registry.method(datetime.date, "today")(_reads_the_clock)
registry.fold(datetime.datetime, datetime.time)
registry.fold_type(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone)


# --- settings of the interpreter --------------------------------------------------------------------------------------


def _guarded(read: Callable[[], Any]) -> registry.Handler:
    """Returns a handler for a question about the process; a guard compares the answer at each call."""

    def answer(tx: Tracer) -> VariableTracker:
        return tx.wrap(read(), Computed("{0}()", (Constant(read, read.__name__),)))

    return answer


for _read in (sys.getrecursionlimit, sys.getswitchinterval, sys.getdefaultencoding, os.getpid, os.cpu_count):
    registry.function(_read)(_guarded(_read))


# --- environment variables ------------------------------------------------------------------------------------------


def environment_entry(environment: Any, name: str) -> str | None:
    """Returns the entry of `os.environ` for a name, or None. The tracer handles this function."""
    return environment.get(name)  # type: ignore[no-any-return]


@registry.polyfill(os._Environ.__getitem__)
def environment_variable(self, key):  # type: ignore[no-untyped-def]
    """Replaces the lookup in `os.environ`; the other methods of `os.environ` call it."""
    value = environment_entry(self, key)
    if value is None:
        raise KeyError(key)
    return value


@registry.function(environment_entry)
def _environment_entry(tx: Tracer, environment: ObjectVariable, name: VariableTracker) -> VariableTracker:
    real = environment.value
    key = real.encodekey(expect_constant(tx, name, "the name of an environment variable"))
    entries = InstanceAttr(environment.source, "_data") if environment.source is not None else None
    if key not in real._data:
        tx.guard(entries, GuardKind.MISSING_KEY, key)
        return ConstantVariable(None)
    tx.guard(entries, GuardKind.HAS_KEY, key)
    value = tx.wrap(real._data[key], None if entries is None else Item(entries, key))
    return ConstantVariable(real.decodevalue(as_constant(value)))
