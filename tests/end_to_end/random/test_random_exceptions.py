"""Random programs that raise, catch, clean up and break, each the same as in eager."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from minidynamo.testing import assert_same_as_eager


class A(Exception):
    def __init__(self, number):
        super().__init__("A", number)
        self.number = number


class B(A):
    pass


class C(KeyError):
    pass


class Manager:
    def __init__(self, log, name, swallows):
        self.log, self.name, self.swallows = log, name, swallows

    def __enter__(self):
        self.log.append(f"in {self.name}")
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append(f"out {self.name} {kind and kind.__name__} {error and error.args}")
        return self.swallows


class Printing:
    def __enter__(self):
        return 7

    def __exit__(self, kind, error, traceback):
        print("exit", kind and kind.__name__)
        return kind is not None and issubclass(kind, LookupError)


@contextlib.contextmanager
def generated(log, name, swallows):
    log.append(f"generator in {name}")
    try:
        yield name
    except A as error:
        log.append(f"generator saw {error.args}")
        if not swallows:
            raise
    finally:
        log.append(f"generator out {name}")


def items(x, log, count):
    try:
        for k in range(count):
            log.append(k)
            yield x * k
            if k == 1:
                raise B(k)
    finally:
        log.append("items")


def callee(x, number, log):
    try:
        if number == 1:
            raise A(number)
        if number == 2:
            raise C("c")
        if number == 3:
            return x / 2
        if number == 4:
            return {}["missing"]
        return x + number
    except C as error:
        log.append(str(error))
        return x - 1
    finally:
        log.append(f"callee {number}")


def loud(x, number):
    try:
        x = x + 1
        if number:
            raise A(number)
        print("quiet")
    except A as error:
        print("loud", error.number)
        x = x * 2
    return x


SIMPLE = (
    *("x = x + 1", "x = x * 2", "y = x - y", "y = y * 0.5", "x = torch.relu(x)"),
    *("log.append({n})", "log.append(y)", "d['k'] = {n}", "d['t'] = x"),
    *("if {when}: raise A({n})", "if {when}: raise C('c')", "if {when}: raise ValueError('v') from None", "raise B(1)"),
    *("d['nokey']", "[][0]", "1 // (len(log) % 2)", "int('x' if len(log) % 2 else '1')", "undefined_name", "x.nope"),
    *("next(iter(()))", "a, b = (1,)", "unbound", "x = callee(x, len(log) % 5, log)", "x = callee(x, {n} % 5, log)"),
    *("for t in items(x, log, {n} % 4): y = y + t", "d['l'] = list(items(x, log, len(log) % 4))"),
)
BREAKING = ("print({n}, len(log))", "x = loud(x, len(log) % 2)")
BLOCKS = (
    *(
        "if len(log) % 2:",
        "for i in range({n} % 3 + 1):",
        "with Manager(log, {n}, {n} % 2 == 0):",
        "try:",
        "try:",
        "try:",
    ),
    *("with generated(log, {n}, {n} % 2 == 0):", "with contextlib.suppress(A, LookupError):", "with torch.no_grad():"),
)
CLASSES = ("A", "B", "C", "LookupError", "(A, KeyError)", "Exception")
SEEN = ("log.append(str(e))", "log.append(repr(e))", "log.append(repr(e.__context__))", "kept = e", "y = y + 1")
LEAVING = ("raise", "raise B(9)", "raise ValueError('w') from e", "return x", "pass")


class Writer:
    """Writes one program: statements, nested at most three deep."""

    simple: Sequence[str] = SIMPLE
    start: Sequence[str] = ("def f(x, log, d):", "    y, i, kept = x * 3, 0, None", "    if len(log) > 99: unbound = 1")

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.breaks = seed % 2 == 0
        self.lines = [*self.start]
        self.number = 0

    def program(self) -> str:
        self.block(1, 3, in_loop=False)
        self.block(1, 3, in_loop=False)
        self.write(1, "return x, y, kept")
        return "\n".join(self.lines) + "\n"

    def write(self, depth: int, text: str) -> None:
        self.number += 1
        when = self.random.choice(("len(log) % 2", "len(log) > 2", "i > 0"))
        self.lines.append("    " * depth + text.replace("{n}", str(self.number)).replace("{when}", when))

    def block(self, depth: int, nesting: int, *, in_loop: bool) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.statement(depth, nesting, in_loop)

    def statement(self, depth: int, nesting: int, in_loop: bool) -> None:
        if nesting and self.random.random() < 0.45:
            head = self.random.choice((*BLOCKS, "with Printing():") if self.breaks else BLOCKS)
            self.write(depth, head)
            self.block(depth + 1, nesting - 1, in_loop=in_loop or head.startswith("for"))
            if head == "try:":
                self.handlers(depth, nesting, in_loop)
            return
        leaving = ("if len(log) % 3 == 1: continue", "if len(log) % 3 == 2: break") * in_loop
        self.write(depth, self.random.choice((*self.simple, *BREAKING * 3 * self.breaks, *leaving)))

    def handlers(self, depth: int, nesting: int, in_loop: bool) -> None:
        classes = self.random.sample(CLASSES, self.random.randint(0, 2))
        for cls in classes:
            self.write(depth, f"except {cls} as e:")
            self.write(depth + 1, self.random.choice(SEEN))
            self.block(depth + 1, nesting - 1, in_loop=in_loop)
            if self.random.random() < 0.3:
                self.write(depth + 1, self.random.choice(LEAVING))
        if classes and self.random.random() < 0.3:
            self.write(depth, "else:")
            self.block(depth + 1, nesting - 1, in_loop=in_loop)
        if not classes or self.random.random() < 0.3:
            self.write(depth, "finally:")
            self.block(depth + 1, nesting - 1, in_loop=in_loop)


def check(seed: int) -> None:
    source = Writer(seed).program()
    namespace: dict[str, Any] = dict(globals())
    exec(compile(source, f"<program {seed}>", "exec"), namespace)
    fn: Callable[..., Any] = namespace["f"]
    try:
        assert_same_as_eager(fn, *(lambda n=n: (torch.randn(3), [0] * n, {}) for n in (0, 1, 0)))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{source}") from error


@pytest.mark.parametrize("seed", range(24))
def test_random_program(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 1100, 50))
def test_random_programs(first):
    for seed in range(first, first + 50):
        check(seed)
