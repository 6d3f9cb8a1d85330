"""Owns the examination of one case: the compilers that capture the whole program, and differences from eager.

Run as `python -m benchmarks.coverage_worker AREA FIRST`, the process writes a line of JSON at each step of a case, so
that a crash costs one case. Computes no sums; `coverage.py` does.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

import torch

import minidynamo
from benchmarks.coverage import EAGER, OURS, TORCH, Finding
from benchmarks.coverage_areas import AREAS
from benchmarks.coverage_case import Case
from minidynamo.core.events import Event
from minidynamo.errors import MinidynamoError
from minidynamo.observe.comparison import Observation, assert_equal_observations, observe

SECONDS = 120  # for one case
HIDDEN = ("MD299", "MD523")  # failures of minidynamo's or a backend's, whose effect an eager rerun hides
ASKED = "MD223"  # the program calls minidynamo.graph_break(), unknown to torch.compile

Compile = Callable[[Any], Any]


class HiddenFailure(Exception):
    """A component failed, and the program ran eagerly instead, with the right result."""


@contextmanager
def nothing_hidden() -> Iterator[None]:
    """Raises HiddenFailure after the block for failures inside that were only reported."""
    reported: list[str] = []

    def note(event: Event) -> None:
        if event.kind == "fallback" and event.data["diagnostic"].code in HIDDEN:
            reported.append(event.data["diagnostic"].render())

    stop = minidynamo.on_event(note)
    try:
        yield
    finally:
        stop()
    if reported:
        raise HiddenFailure(f"{first_line(reported[0])} {reported[0].splitlines()[1:]}")


def compare(case: Case, compiled: Callable[..., Any], *, values_only: bool) -> Observation | None:
    """Calls both functions for each maker; returns the first compiled call that raised an error unlike eager's,
    otherwise None.

    Raises AssertionError at the first difference.
    """
    for number, make in enumerate(case.makers):
        expected = observe(case.fn, make, seed=number, backward=True)
        actual = observe(compiled, make, seed=number, backward=True)
        if actual.error is not None and type(actual.error) is not type(expected.error):
            return actual
        if values_only:
            expected, actual = (replace(seen, identical={}, sharing={}) for seen in (expected, actual))
        assert_equal_observations(f"call {number}", expected, actual, {})
    return None


def first_line(text: object) -> str:
    lines = str(text).strip().splitlines()
    return lines[0][:200] if lines else type(text).__name__


def unfit(case: Case) -> str:
    """Returns the reason why the case does not apply to compilers, or an empty text."""
    try:
        for number, make in enumerate(case.makers):
            seen = observe(case.fn, make, seed=number, backward=True)
            if seen.error is not None:
                return f"raises {type(seen.error).__name__}: {first_line(seen.error)}"
        compare(case, case.fn, values_only=False)
    except Exception as error:
        return first_line(error)
    return ""


def captured_by_torch(case: Case) -> str:
    torch.compiler.reset()
    try:
        failed = compare(case, torch.compile(case.fn, fullgraph=True, backend="eager"), values_only=True)
    except Exception as error:
        return f"differs: {first_line(error)}"
    finally:
        torch.compiler.reset()
    return "" if failed is None else f"{type(failed.error).__name__}: {first_line(failed.error)}"


def captured_here(case: Case) -> tuple[str, str]:
    """Returns the reason against a whole capture, and the difference."""
    minidynamo.reset()
    try:
        with nothing_hidden():
            failed = compare(case, minidynamo.compile(case.fn, fullgraph=True, backend="eager"), values_only=False)
    except AssertionError as error:
        return "", first_line(error)
    except Exception as error:
        return "", f"{type(error).__name__}: {first_line(error)}"
    if failed is None:
        return "", ""
    if not isinstance(failed.error, MinidynamoError):
        return "", f"raises {type(failed.error).__name__}: {first_line(failed.error)}"
    return reason(failed.error), in_parts(case)


def reason(error: MinidynamoError) -> str:
    diagnostic = error.diagnostic
    what = diagnostic.what.removeprefix("fullgraph=True, but here the graph ends: ")
    line = diagnostic.where.source_line().strip() if diagnostic.where else ""
    bug = f" {first_line(diagnostic.why)}" if diagnostic.code == "MD299" else ""
    return f"{diagnostic.code} {what}{bug} | {line}"


def in_parts(case: Case) -> str:
    """Returns the difference when the graph may end."""
    minidynamo.reset()
    try:
        with nothing_hidden():
            failed = compare(case, minidynamo.compile(case.fn, backend="eager"), values_only=False)
    except Exception as error:
        return f"in parts: {first_line(error)}"
    return "" if failed is None else f"in parts: raises {type(failed.error).__name__}: {first_line(failed.error)}"


def find_out(case: Case, write: Callable[[dict[str, str]], None]) -> Finding:
    """Returns all findings about one case; calls `write` with the next system before each run."""
    write({"turn": EAGER, "name": case.name})
    why_not = unfit(case)
    if why_not:
        return Finding(case.name, unfit=why_not)
    write({"turn": TORCH, "name": case.name})
    torch_says = captured_by_torch(case)
    write({"turn": OURS, "name": case.name})
    ours, differs = captured_here(case)
    asks = "asks minidynamo for a graph break" if ours.startswith(ASKED) else ""
    return Finding(case.name, asks, torch_says, ours, differs)


def main() -> None:
    """Runs the cases of an area, from number FIRST on."""
    area, first = sys.argv[1], int(sys.argv[2])
    # The reader of the results must not see the standard output of programs.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")

    def write(record: dict[str, str]) -> None:
        print(json.dumps(record), file=out, flush=True)

    for case in AREAS[area]()[first:]:
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        finding = find_out(case, write)
        faulthandler.cancel_dump_traceback_later()
        write(asdict(finding))
    with suppress(BrokenPipeError):
        out.close()


if __name__ == "__main__":
    main()
