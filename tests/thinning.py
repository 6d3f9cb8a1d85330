"""Owns the reduction of a full run.

Of all ways to compile a program, a single way runs, a different way for each interpreter. So the three interpreters of
`.ci/run` cover all ways together. A run that names a file, a folder or --slow covers all ways, too.

The later interpreters of `.ci/run` share the tests that have a single way and do not depend on the interpreter
(--share): each of these tests runs on the first interpreter and on one later interpreter.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
AXES = ("backend", "target", "dynamic", "vary", "training", "grad", "lay_out", "decompose")
"""What tests call the parameter that says what compiles a program or, where they have one backend, how: for which
sizes, with gradients or without, with a stage of the compiler or without."""

BELOW_BYTECODE = (
    "autograd",
    "benchmarks",
    "codegen",
    "end_to_end/autograd",
    "end_to_end/distributed",
    "end_to_end/models",
    "end_to_end/numbers",
    "end_to_end/random",
    "fake",
    "memory",
    "other_compilers",
)
"""The folders whose tests are about graphs and what becomes of graphs, not about the bytecode that is traced."""


def is_thinned(config: pytest.Config) -> bool:
    """True if all tests were requested, without further options."""
    asked = (Path(config.invocation_params.dir, arg).resolve() for arg in config.args)
    whole = any(TESTS.is_relative_to(path) for path in asked)
    return whole and not config.getoption("--slow") and not config.getoption("--update-golden")


def left_out(items: Iterable[pytest.Item], minor: int = sys.version_info.minor) -> list[pytest.Item]:
    """Returns the tests that a test of the same program on a different backend represents.

    Skipped tests represent none. `minor` is the interpreter's version.
    """
    out: list[pytest.Item] = []
    for programs in tables(items):
        for index, tests in enumerate(programs):
            chosen = (turn(index, len(tests)) + minor) % len(tests)
            out += tests[:chosen] + tests[chosen + 1 :]
    return out


def in_other_shares(items: Iterable[pytest.Item], share: str) -> list[pytest.Item]:
    """Returns the tests that belong to other interpreters; `share` is "K/N", the K-th of N shares.

    Every file of BELOW_BYTECODE belongs to one share. Tests that `left_out` rotates run in each share.
    """
    part, _, parts = share.partition("/")
    ways = {id(item) for programs in tables(items) for tests in programs for item in tests if len(tests) > 1}
    below = [item for item in items if _is_below_bytecode(item.path) and id(item) not in ways]
    files = {path: place for place, path in enumerate(sorted({item.path for item in below}))}
    return [item for item in below if files[item.path] % int(parts) != int(part) - 1]


def _is_below_bytecode(path: Path) -> bool:
    folder = path.relative_to(TESTS)
    return any(folder.is_relative_to(name) for name in BELOW_BYTECODE)


def tables(items: Iterable[pytest.Item]) -> list[list[list[pytest.Item]]]:
    """Returns the tests with a parameter of AXES, by function, then by program; the first such parameter counts."""
    found: dict[str, dict[Any, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        parameters = dict(item.callspec.params) if hasattr(item, "callspec") else {}
        axis = next((name for name in AXES if name in parameters), None)
        if axis is not None and not item.get_closest_marker("skip"):
            del parameters[axis]
            program = tuple((name, id(value)) for name, value in sorted(parameters.items()))
            found[item.nodeid.partition("[")[0]][program].append(item)
    return [list(programs.values()) for programs in found.values()]


def turn(index: int, count: int) -> int:
    """Returns a number below `count`, evenly distributed along every axis of a table."""
    if count == 1:
        return 0
    total = 0
    while index:
        index, digit = divmod(index, count)
        total += digit
    return total % count
