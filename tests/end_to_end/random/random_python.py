"""Owns a generator of small random Python programs over tensors, numbers, text, lists, dicts and objects.

Runs nothing. A program is well typed: the first letters of a name give its type, tensors have shape (3,), loops end.
`test_random_python.py` compares all further effects, exceptions included.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from hypothesis import strategies as st

import minidynamo
from tests.end_to_end.random.python_templates import BREAKING, EXPRESSIONS, ORDINARY, RAISING, SIMPLEST

_numbers = itertools.count()


class Oops(Exception):
    """An exception class of the random program."""


class Box:
    """An object of the program; as a context manager, prints, counts, and swallows `Oops`."""

    kind = "box"

    def __init__(self, t: torch.Tensor, n: int = 0) -> None:
        self.value = t
        self.n = n

    def bump(self, by: int = 1) -> int:
        self.n = (self.n + by) % 11
        return self.n

    @property
    def doubled(self) -> torch.Tensor:
        return self.value * 2

    def __len__(self) -> int:
        return self.n % 4

    def __add__(self, other: Any) -> Box:
        return Box(self.value + getattr(other, "value", other), self.n)

    def __enter__(self) -> Box:
        print("enter", self.n)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        print("exit", kind.__name__ if kind else None)
        self.n += 1
        return kind is Oops


@contextlib.contextmanager
def scaled(n: int) -> Iterator[int]:
    """A context manager of the random program, in the form of a generator."""
    print("scale", n)
    try:
        yield n + 1
    finally:
        print("unscale", n)


PARAMETERS = ["t0", "t1", "n0", "b0", "s0", "ts0", "ns0", "d0", "o0"]


def kind_of(name: str) -> str:
    return name.rstrip("0123456789")


@dataclass
class Writer:
    """Writes one program. `names` are the names certainly bound at the current line, `own` the names bound in its
    function."""

    draw: Callable[..., Any]
    lines: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: list(PARAMETERS))
    own: set[str] = field(default_factory=lambda: set(PARAMETERS))
    functions: list[str] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=lambda: {name.rstrip("0123456789"): 9 for name in PARAMETERS})
    depth: int = 0
    indent: int = 1
    in_loop: bool = False

    # Tables that a subclass may extend.
    expressions: ClassVar[dict[str, list[str]]] = EXPRESSIONS
    simplest: ClassVar[dict[str, str]] = SIMPLEST
    ordinary: ClassVar[list[str]] = ORDINARY
    raising: ClassVar[list[str]] = RAISING
    breaking: ClassVar[list[str]] = BREAKING
    kinds: ClassVar[tuple[str, ...]] = ("t", "t", "t", "n", "n", "b", "s", "ts", "ns", "d", "o")

    def pick(self, choices: list[Any]) -> Any:
        return choices[0] if len(choices) == 1 else self.draw(st.sampled_from(choices))

    def roll(self) -> int:
        return self.draw(st.integers(0, 99))

    def chance(self, percent: int) -> bool:
        return self.roll() < percent

    def write(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def fresh(self, kind: str) -> str:
        self.counters[kind] = self.counters.get(kind, 0) + 1
        return f"{kind}{self.counters[kind]}"

    def variable(self, kind: str) -> str | None:
        """Draws a bound variable; later variables more often, so that values flow."""
        found = [name for name in self.names if kind_of(name) == kind]
        return self.pick(found[-3:] if self.chance(60) else found) if found else None

    def expression(self, kind: str, depth: int = 2) -> str:
        if depth == 0 or self.chance(20 if depth > 2 else 45):
            return self.variable(kind) or self.simplest[kind]
        return self.fill(self.pick(self.expressions[kind]), depth - 1)

    def fill(self, template: str, depth: int = 2) -> str:
        def replace(match: re.Match[str]) -> str:
            kind = match[1]
            if kind in ("vn", "vs", "vt"):
                return self.variable(kind[1]) or self.simplest[kind[1]]
            if kind.islower():
                text = self.expression(kind, depth)
                return text if re.fullmatch(r"\w+|[\w.]+\([^()]*\)", text) or kind in "ki" else f"({text})"
            found = [name for name in self.names if kind_of(name) == kind.lower() and name in self.own]
            return self.pick(found) if found else "_"

        text = re.sub(r"\{([a-zA-Z]{1,2})\}", replace, template)
        return text.replace("{{", "{").replace("}}", "}")

    def assign(self, kind: str, text: str) -> None:
        own = [name for name in self.names if kind_of(name) == kind and name in self.own]
        name = self.pick(own) if own and self.chance(35) else self.fresh(kind)
        self.write(f"{name} = {text}")
        self.bind(name)

    def bind(self, name: str) -> None:
        self.own.add(name)
        if name not in self.names:
            self.names.append(name)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Writes an indented block after `head`; names first bound inside may be unbound afterwards."""
        self.write(head)
        names, functions = list(self.names), list(self.functions)
        self.indent += 1
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.write("pass")
        self.indent -= 1
        self.depth -= 1
        self.names[:], self.functions[:] = names, functions

    def body(self, most: int = 3) -> None:
        for _ in range(self.pick([*range(1, most + 1)])):
            self.statement()

    def compounds(self) -> list[Callable[[], None]]:
        found = [self.branch, self.match, self.loop, self.count_down, self.attempt, self.context]
        return [*found, self.function, self.generator, self.exchange]

    def statement(self) -> None:
        choice = self.roll()
        if choice < 22:
            self.assign(kind := self.pick(list(self.kinds)), self.expression(kind, 3))
        elif choice < 50 or (self.depth >= 3 and choice < 85):
            self.line(self.ordinary)
        elif choice < 82:
            self.pick(self.compounds())()
        elif choice < 88 and self.functions:
            self.call()
        elif choice < 93:
            self.line(self.breaking)
        elif choice < 95:
            self.line(self.raising)
        elif choice < 98 and self.in_loop:
            with self.block(f"if {self.expression('b')}:"):
                self.write(self.pick(["break", "continue"]))
        elif self.depth:
            self.leave()
        else:
            self.line(self.ordinary)

    def line(self, templates: list[str]) -> None:
        text = self.fill(self.pick(templates), 1)
        if not re.search(r"(^|\W)_(\W|$)", text):
            self.write(text)

    def leave(self) -> None:
        with self.block(f"if {self.expression('b')}:"):
            self.write(f"return {self.expression('t')}, {self.expression('n')}")

    def branch(self) -> None:
        on_data = self.chance(8)
        condition = f"({self.expression('t', 1)}).sum() > 0" if on_data else self.expression("b")
        with self.block(f"if {condition}:"):
            self.body()
        if self.chance(30):
            with self.block(f"elif {self.expression('b')}:"):
                self.body()
        if self.chance(50):
            with self.block("else:"):
                self.body()

    def match(self) -> None:
        """Writes a match statement on a number, a text or a tuple."""
        subjects = {
            self.expression("n"): ["0 | 1", "2", "int() if {b}"],
            self.expression("s"): ["'a'", "'ab' | ''", "str() if {b}"],
            f"({self.expression('n')}, {self.expression('s')})": [
                "(1 | 2, 'a')",
                "(3, _)",
                "(_, 'b') if {b}",
                "[0, *_]",
            ],
        }
        subject = self.pick(list(subjects))
        with self.block(f"match {subject}:"):
            for pattern in [self.pick(subjects[subject]), "_"]:
                with self.block(f"case {self.fill(pattern, 1)}:"):
                    self.body(2)

    def loop(self) -> None:
        n, t, k = self.fresh("n"), self.fresh("t"), self.fresh("s")
        heads = {
            f"for {n} in range({self.pick([1, 2, 3])}):": [n],
            f"for {t} in list({self.expression('ts')})[:3]:": [t],
            f"for {n}, {t} in enumerate(({self.expression('ts')})[:3]):": [n, t],
            f"for {n}, {t} in zip(({self.expression('ns')})[:3], ({self.expression('ts')})[:3]):": [n, t],
            f"for {k}, {t} in list(({self.expression('d')}).items())[:3]:": [k, t],
            f"for {n} in reversed(({self.expression('ns')})[:3]):": [n],
            f"for {n} in (z * 2 for z in ({self.expression('ns')})[:3]):": [n],
        }
        head = self.pick(list(heads))
        outer, self.in_loop = self.in_loop, True
        with self.block(head):
            for name in heads[head]:
                self.bind(name)
            self.body()
        self.in_loop = outer
        if self.chance(20):
            with self.block("else:"):
                self.body(1)

    def count_down(self) -> None:
        name = self.fresh("w")
        self.write(f"{name} = {self.pick([1, 2, 3])}")
        outer, self.in_loop = self.in_loop, True
        with self.block(f"while {name} > 0:"):
            self.write(f"{name} -= 1")
            self.body(2)
        self.in_loop = outer

    def attempt(self) -> None:
        with self.block("try:"):
            self.body(2)
            if self.chance(70):
                self.line(self.raising)
            if self.chance(30):
                self.body(1)
        caught = self.pick(
            [
                "Oops",
                "ValueError",
                "(KeyError, IndexError)",
                "ArithmeticError",
                "LookupError",
                "Exception",
                "RuntimeError",
                "",
            ]
        )
        if caught:
            named = self.chance(50)
            with self.block(f"except {caught} as error:" if named else f"except {caught}:"):
                if named:
                    self.write(self.pick(["print(type(error).__name__)", "print(error)", "print(len(error.args))"]))
                self.body(1)
                if self.chance(10):
                    self.write(self.pick(["raise", "raise Oops('again')"]))
            if self.chance(20):
                with self.block("else:"):
                    self.body(1)
        if not caught or self.chance(30):
            with self.block("finally:"):
                outer, self.in_loop = self.in_loop, False
                self.line(self.ordinary)
                self.in_loop = outer

    def context(self) -> None:
        n, o = self.fresh("n"), self.fresh("o")
        heads = {
            "with torch.no_grad():": [],
            f"with {self.expression('o', 1)} as {o}:": [o],
            f"with scaled({self.expression('n', 1)}) as {n}:": [n],
            "with contextlib.nullcontext():": [],
            "with contextlib.suppress(Oops, KeyError):": [],
            f"with torch.set_grad_enabled({self.expression('b', 1)}):": [],
            f"with torch.no_grad(), {self.expression('o', 1)}:": [],
        }
        head = self.pick(list(heads))
        with self.block(head):
            for name in heads[head]:
                self.bind(name)
            self.body()

    def function(self) -> None:
        """Writes a closure that reads bound variables, and writes its nonlocal variables."""
        name, t, n = self.fresh("f"), self.fresh("t"), self.fresh("n")
        outer = self.own, self.in_loop
        written = (
            [self.pick(sorted(self.own & set(self.names)))] if self.own & set(self.names) and self.chance(50) else []
        )
        with self.block(f"def {name}({t}, {n}={self.expression('n', 1)}):"):
            if written:
                self.write(f"nonlocal {written[0]}")
            self.own, self.in_loop = {t, n, *written}, False
            self.names += [t, n]
            self.body()
            self.write(f"return {self.expression('t')}")
        self.own, self.in_loop = outer
        self.functions.append(name)

    def generator(self) -> None:
        """Writes a generator function, and a consumer."""
        name, t, n = self.fresh("g"), self.fresh("t"), self.fresh("n")
        outer = self.own, self.in_loop
        with self.block(f"def {name}({t}):"):
            self.own, self.in_loop = {t}, False
            self.names.append(t)
            with self.block(f"for {n} in range({self.pick([1, 2])}):"):
                self.bind(n)
                self.body(1)
                self.write(f"yield {self.expression('t')}")
                self.body(1)
        self.own, self.in_loop = outer
        made = f"{name}({self.expression('t')})"
        how = self.pick(["list", "next", "for", "yield from"])
        if how == "for":
            item = self.fresh("t")
            with self.block(f"for {item} in {made}:"):
                self.bind(item)
                self.body(2)
        elif how == "next":
            self.assign("t", f"next({made}, {self.expression('t')})")
        elif how == "list":
            self.assign("ts", f"[*{made}]")
        else:
            outside = self.fresh("g")
            with self.block(f"def {outside}():"):
                self.write(f"yield from {made}")
                self.write(f"yield {self.expression('t')}")
            self.assign("ts", f"list({outside}())")

    def call(self) -> None:
        arguments = [self.expression("t"), *([self.expression("n")] if self.chance(50) else [])]
        spread = f"*[{', '.join(arguments)}]" if self.chance(20) else ", ".join(arguments)
        self.assign("t", f"{self.pick(self.functions)}({spread})")

    def exchange(self) -> None:
        kind = self.pick(["t", "n", "ts", "o"])
        found = [name for name in self.names if kind_of(name) == kind and name in self.own]
        if len(found) >= 2:
            self.write(f"{found[0]}, {found[-1]} = {found[-1]}, {found[0]}")
        else:
            self.line(self.ordinary)


@dataclass(frozen=True)
class RandomProgram:
    """The text of a function of the parameters `PARAMETERS`."""

    source: str

    def __repr__(self) -> str:
        return f"\n{self.source}"

    def build(self) -> Callable[..., Any]:
        """Returns the function, with its lines available to tracebacks."""
        filename = f"<random Python {next(_numbers)}>"
        linecache.cache[filename] = (len(self.source), None, self.source.splitlines(keepends=True), filename)
        namespace = dict(NAMESPACE)
        exec(compile(self.source, filename, "exec"), namespace)
        program: Callable[..., Any] = namespace["program"]
        return program


@st.composite
def programs(draw: Callable[..., Any]) -> RandomProgram:
    """Writes a function that returns all variables bound at its end."""
    writer = Writer(draw)
    for _ in range(draw(st.integers(2, 9))):
        writer.statement()
    # The last variables hold the results of the most operations.
    writer.write(f"return [{', '.join(writer.names)}]")
    return RandomProgram("\n".join([f"def program({', '.join(PARAMETERS)}):", *writer.lines, ""]))


@minidynamo.disable
def opaque(value: Any) -> Any:
    """Hides an addition from the tracer."""
    return value + 1


NAMESPACE = {"__name__": "random_program", "minidynamo": minidynamo, "torch": torch, "Box": Box, "Oops": Oops}
NAMESPACE |= {"scaled": scaled, "opaque": opaque, "contextlib": contextlib, "itertools": itertools}
NAMESPACE |= {name: __import__(name) for name in ("copy", "functools", "operator")}


def inputs() -> tuple[Any, ...]:
    """Returns arguments for the parameters; the second tensor is computed from a leaf that gets a gradient."""
    t0, leaf = torch.randn(3), torch.randn(3, requires_grad=True)
    return (
        t0,
        leaf * 2,
        3,
        True,
        "ab",
        [torch.randn(3), t0],
        [2, 1, 5],
        {"a": torch.randn(3), "b": leaf},
        Box(torch.randn(3), 2),
    )


def other_inputs() -> tuple[Any, ...]:
    """Returns arguments for which each branch on a number, a text or a length may differ."""
    t0, leaf = torch.randn(3), torch.randn(3, requires_grad=True)
    return t0, leaf + 1, 4, False, "", [leaf], [0, 3], {"ab": t0}, Box(t0, 0)
