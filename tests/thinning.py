"""Owns the reduction of a full run: of all ways to compile a program, a single way runs, a different way for each
interpreter.

So the three interpreters of `.ci/run` cover all ways together. A run that names a file, a folder or --slow covers all
ways, too.
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
