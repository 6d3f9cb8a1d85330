"""Tests omitted from a full run, and the tests that represent them."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.thinning import BELOW_BYTECODE, TESTS, in_other_shares, is_thinned, left_out

PROGRAMS = ["a", "b", "c", "d"]
MODES = ["training", "inference", "neither"]
BACKENDS = ["eager", "aot_eager", "native"]
VERSIONS = [11, 12, 13]


class Item(SimpleNamespace):
    """A test as pytest collects it."""

    def get_closest_marker(self, name: str) -> bool:
        assert name == "skip"
        return getattr(self, "skip", False)


def table(programs: list[Any] = PROGRAMS, modes: list[Any] = MODES, backends: list[Any] = BACKENDS) -> list[Any]:
    return [
        Item(
            nodeid=f"test_file.py::test_table[{backend}-{mode}-{program}]",
            callspec=SimpleNamespace(params={"backend": backend, "mode": mode, "program": program}),
        )
        for program, mode, backend in itertools.product(programs, modes, backends)
    ]


def run(items: list[Any], minor: int) -> list[tuple[str, str, str]]:
    out = [id(item) for item in left_out(items, minor)]
    return [tuple(item.callspec.params.values()) for item in items if id(item) not in out]


@pytest.mark.parametrize("minor", VERSIONS)
def test_each_program_runs_once_and_each_backend_meets_every_value(minor: int) -> None:
    ran = run(table(), minor)
    assert Counter((mode, program) for _, mode, program in ran) == Counter(itertools.product(MODES, PROGRAMS))
    for place, values in ((1, MODES), (2, PROGRAMS)):
        assert {(r[0], r[place]) for r in ran} == set(itertools.product(BACKENDS, values))


def test_three_interpreters_run_all() -> None:
    everything = {tuple(item.callspec.params.values()) for item in table()}
    assert set().union(*(run(table(), minor) for minor in VERSIONS)) == everything


def test_what_is_skipped_anyway_stands_in_for_nothing() -> None:
    items = table(backends=["eager", "native"])
    for item in items:
        item.skip = item.callspec.params["backend"] == "native"
    assert left_out(items) == []


def test_sizes_stand_in_for_each_other_beside_one_backend_only() -> None:
    items = table(backends=["native"]) + table(backends=["native"])
    for dynamic, item in zip([False] * 12 + [True] * 12, items):
        item.callspec.params["dynamic"] = dynamic
    assert left_out(items) == []
    for item in items:
        del item.callspec.params["backend"]
    assert len(left_out(items)) == 12


def test_tests_without_backends_run_as_they_are() -> None:
    others = [Item(nodeid=f"test_other[{i}]", callspec=SimpleNamespace(params={"x": i})) for i in range(9)]
    assert left_out([*others, Item(nodeid="test_without_parameters")]) == []


@pytest.mark.parametrize(
    "args, options, thinned",
    [
        (["tests"], (), True),
        (["."], (), True),
        (["tests"], ("--slow",), False),
        (["tests"], ("--update-golden",), False),
        (["tests/autograd"], (), False),
        (["tests/frontend/test_compile.py::test_x"], (), False),
    ],
)
def test_only_where_all_tests_are_asked_for(args: list[str], options: tuple[str, ...], thinned: bool) -> None:
    where = SimpleNamespace(dir=Path(TESTS.parent))
    config: Any = SimpleNamespace(args=args, invocation_params=where, getoption=lambda name: name in options)
    assert is_thinned(config) is thinned


def test_shares_cover_each_test_below_the_bytecode_once() -> None:
    files = [TESTS / folder / f"test_{letter}.py" for folder in BELOW_BYTECODE for letter in "abcd"]
    below = [Item(nodeid=f"{path}::test_{i}", path=path) for path in files for i in range(2)]
    others = [Item(nodeid=f"{name}::test", path=TESTS / name) for name in ("test_docs.py", "tracer/test_a.py")]
    items = [*others, *below]
    out = [{id(item) for item in in_other_shares(items, f"{part}/2")} for part in (1, 2)]
    assert out[0] | out[1] == {id(item) for item in below}
    assert not out[0] & out[1]
    assert len(out[0]) == len(out[1])


def test_all_ways_of_a_program_run_in_each_share() -> None:
    items = [*table(), Item(nodeid="test_single", path=TESTS / "codegen" / "test_file.py")]
    for item in items:
        item.path = TESTS / "codegen" / "test_file.py"
    assert in_other_shares(items, "1/2") == []
    assert in_other_shares(items, "2/2") == items[-1:]
