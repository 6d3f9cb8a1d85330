"""Owns a generator of random Python programs that live in a module: classes, globals, and changes between calls.

Runs nothing: `test_random_surroundings.py` compares the programs, call by call.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import linecache
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from hypothesis import reject
from hypothesis import strategies as st

from tests.end_to_end.random.random_python import NAMESPACE, PARAMETERS, Writer
from tests.end_to_end.random.surroundings_templates import (
    BREAKING_HERE,
    CHANGES,
    EXPRESSIONS_HERE,
    MODULE,
    OBSERVED,
    ORDINARY_HERE,
    RAISING_HERE,
    SIMPLEST_HERE,
)

_numbers = itertools.count()

GLOBAL_WRITES = ["G = {n}", "G += {n} % 3", "GT = {t}", "GL = {ns}", "GD = {d}", "FLAG = {b}", "GO = {q}", "del FLAG"]


class SurroundedWriter(Writer):
    """Writes the program function; the functions that it calls are in the module."""

    expressions = EXPRESSIONS_HERE
    simplest = SIMPLEST_HERE
    kinds = (*Writer.kinds, "se", "tu", "q", "c", "e", "q")
    ordinary: ClassVar[list[str]] = [*ORDINARY_HERE, *GLOBAL_WRITES]
    raising = RAISING_HERE
    breaking = BREAKING_HERE

    def compounds(self) -> list[Callable[[], None]]:
        more = [self.own_context, self.cleaned, self.own_class, self.talking, self.patterns, self.variadic]
        return [*super().compounds(), *more]

    def own_context(self) -> None:
        heads = {
            f"with {self.expression('q', 1)}:",
            f"with pushed({self.expression('n', 1)}):",
            f"with pushed({self.expression('n', 1)}), GO:",
            "with contextlib.ExitStack() as _stack:",
        }
        head = self.pick(sorted(heads))
        with self.block(head):
            if "ExitStack" in head:
                self.write(f"_stack.enter_context(pushed({self.expression('n', 1)}))")
                self.write(f"_stack.callback(STACK.append, {self.expression('n', 1)})")
            self.body()
            if self.chance(25):
                self.line(self.raising)

    def cleaned(self) -> None:
        """Writes a `try` with a `finally` that is left by break, continue, return or exceptions."""
        name = self.fresh("n")
        outer, self.in_loop = self.in_loop, True
        with self.block(f"for {name} in range({self.pick([1, 2, 3])}):"):
            self.bind(name)
            with self.block("try:"):
                self.body(2)
                with self.block(f"if {self.expression('b')}:"):
                    ways = ["break", "continue", f"return {self.expression('t')}", "raise Oops('out')", "pass"]
                    self.write(self.pick(ways))
            if self.chance(50):
                with self.block("except (Oops, ValueError, TypeError) as _error:"):
                    self.write("print(type(_error).__name__)")
                    self.write(self.pick(["pass", "raise", "raise KeyError('k') from _error", "continue", "break"]))
            with self.block("finally:"):
                self.line(self.ordinary)
                if self.chance(15):
                    self.write(self.pick(["break", "continue", f"return {self.expression('t')}"]))
        self.in_loop = outer

    def own_class(self) -> None:
        """Writes a class that the program defines, and an instance."""
        name, t, n = f"K{len(self.lines)}", self.fresh("t"), self.fresh("n")
        outer = self.own, self.in_loop
        with self.block(f"class {name}({self.pick(['Base', 'Derived', 'Derived'])}):"):
            self.write(f"factor = {self.expression('n', 1)}")
            with self.block(f"def step(self, {t}, {n}=1, *rest, scale=1, **options):"):
                self.own, self.in_loop = {t, n}, False
                self.names += [t, n]
                if self.chance(60):
                    self.write(f"{t} = super().step({t}, {n}, *rest)")
                self.body(2)
                self.write(f"return {self.expression('t')}")
        self.own, self.in_loop = outer
        self.assign("q", f"{name}({self.expression('t')}, {self.expression('n')})")

    def talking(self) -> None:
        """Writes a generator that is sent values, thrown into, or closed."""
        name = f"_g{len(self.lines)}"
        self.write(f"{name} = talk({self.expression('t')})")
        for _ in range(self.pick([1, 2, 3])):
            way = self.pick(["next", "send", "throw", "close", "list"])
            if way == "next":
                self.assign("t", f"next({name}, {self.expression('t', 1)})")
            elif way == "send":
                self.assign("t", f"{name}.send({self.pick(['None', self.expression('t', 1)])})")
            elif way == "throw":
                self.assign("t", f"{name}.throw({self.pick(['ValueError', 'ValueError(1)', 'Oops'])})")
            elif way == "close":
                self.write(f"{name}.close()")
            else:
                self.assign("ts", f"[*{name}]")
            if self.chance(30):
                self.statement()

    def patterns(self) -> None:
        """Writes a match statement on the structure of a value."""
        t, n = self.fresh("t"), self.fresh("n")
        subject, cases = self.pick(
            [
                ("q", [f"Derived(t={t}, n={n})", "Base()"]),
                ("c", [f"Config({t}, {n})", f"Config(t={t}, steps=2 as {n})"]),
                ("tu", [f"Pair({t}, {n})", f"({t}, int({n}))"]),
                ("d", [f"{{'a': {t}, **_rest}}", f"{{'b': {t}}}"]),
                ("ns", [f"[{n}, 1, *_]", f"[*_, {n}]", "[]"]),
                ("e", ["Color.RED", "Color.BLUE"]),
                ("ts", [f"[{t}]", f"[{t}, *_]"]),
            ]
        )
        with self.block(f"match {self.expression(subject, 1)}:"):
            case = self.pick(cases)
            guard = f" if {self.expression('b', 1)}" if self.chance(30) else ""
            with self.block(f"case {case}{guard}:"):
                for name in (t, n):
                    if name in case:
                        self.bind(name)
                self.body(2)
            with self.block("case _:"):
                self.body(1)

    def variadic(self) -> None:
        """Writes a function with every kind of parameter, called with spread arguments."""
        name, t, n = self.fresh("f"), self.fresh("t"), self.fresh("n")
        outer = self.own, self.in_loop
        default = self.expression("ns", 1)
        if self.chance(40):
            self.write(self.pick(["@deco", "@functools.wraps(helper)", "@functools.lru_cache"]))
        with self.block(f"def {name}({t}, /, {n}=1, *_a, _k=2, _l={default}, **_o):"):
            self.own, self.in_loop = {t, n}, False
            self.names += [t, n]
            self.body(2)
            self.write("_l.append(len(_a) + _k)" if self.chance(50) else f"{t} = {t} * len(_o)")
            self.write(f"return {self.expression('t')} + _k + len(_a) + len(_l)")
        self.own, self.in_loop = outer
        self.functions.append(name)
        numbers, n2 = self.expression("ns", 1), self.expression("n", 1)
        spread = self.pick([f"*{numbers}", f"**{{'_k': {n2}}}", f"_k={n2}, z=1", f"*{numbers}, z=2"])
        self.assign("t", f"{name}({self.expression('t', 1)}, {spread})")


@dataclass(frozen=True)
class SurroundedProgram:
    """The text of a module with the function `program`, and the changes of the module before each call."""

    source: str
    changes: list[str]

    def __repr__(self) -> str:
        return f"\n{self.source}\n{self.changes}"

    def build(self) -> dict[str, Any]:
        """Returns the names of a new module."""
        filename = f"<random surroundings {next(_numbers)}>"
        text = MODULE + self.source
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        names = {**NAMESPACE, **LIBRARIES}
        exec(compile(text, filename, "exec", dont_inherit=True), names)
        return names


@st.composite
def surrounded_programs(draw: Callable[..., Any]) -> SurroundedProgram:
    """Writes a program with five calls."""
    program = write_program(SurroundedWriter(draw))
    try:
        compile(program.source, "<written>", "exec", dont_inherit=True)
    except SyntaxError:  # such as an assignment expression in the iterable of a comprehension
        reject()
    return program


def write_program(writer: SurroundedWriter) -> SurroundedProgram:
    """The result of the writer."""
    writer.write("global G, GT, GL, GD, GS, GO, FLAG")
    for _ in range(writer.pick([*range(2, 10)])):
        writer.statement()
    writer.write(f"return [{', '.join(writer.names)}]")
    source = "\n".join([f"def program({', '.join(PARAMETERS)}):", *writer.lines, ""])
    changes = ["pass", "pass", *(writer.pick(CHANGES) for _ in range(4))]
    return SurroundedProgram(source, changes)


def observed(names: dict[str, Any]) -> dict[str, Any]:
    """Returns the compared values of a module."""
    found = {}
    for name, text in OBSERVED.items():
        with contextlib.suppress(Exception):
            found[name] = eval(text, names)
    return found


LIBRARIES = {
    **{module.__name__: module for module in (collections, contextlib, copy, dataclasses, enum, functools, operator)},
    "Any": Any,
    "ClassVar": ClassVar,
    "NamedTuple": NamedTuple,
    "itertools": itertools,
    "Iterator": Iterator,
}
