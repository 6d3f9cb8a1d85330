"""Tests of minidynamo/tracer/handlers/user_warnings.py: a warning of the program costs no graph break while it is only
written."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch

import minidynamo
from minidynamo.testing import no_recompile


def write(message: warnings.WarningMessage) -> None:
    sys.stderr.write(warnings.formatwarning(message.message, message.category, message.filename, message.lineno))


write.__module__ = "warnings"


@pytest.fixture
def written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.CaptureFixture[str]]:
    """Writes all warnings to stderr, as outside of tests; pytest collects them or raises them."""
    with warnings.catch_warnings():
        monkeypatch.setattr(warnings, "_showwarnmsg_impl", write)
        warnings.resetwarnings()
        warnings.simplefilter("always")
        yield capsys


def helper(x: torch.Tensor) -> torch.Tensor:
    warnings.warn("in a helper", FutureWarning, stacklevel=1)
    return x * 2


class Layer(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.old(x) + deprecated(x, 2)

    def old(self, x: torch.Tensor) -> torch.Tensor:
        warnings.warn("a method", DeprecationWarning, 2)
        return x * 2


def deprecated(x: torch.Tensor, level: int) -> torch.Tensor:
    warnings.warn(f"deprecated {level}", DeprecationWarning, stacklevel=level)
    return x + 1


LAYER = Layer()


def warns(x: torch.Tensor) -> torch.Tensor:
    warnings.warn("first")  # noqa: B028
    y = helper(x).sin()
    warnings.warn(f"sum {y.sum():.2f}", RuntimeWarning, stacklevel=1)
    print("between", file=sys.stderr)
    warnings.warn("last", None, stacklevel=1)
    result: torch.Tensor = LAYER(y) + deprecated(x, 2) + (lambda z: deprecated(z, 3))(y)
    return result


def test_a_written_warning_is_no_reason_to_break(written: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(2)
    expected, texts = warns(x), written.readouterr().err
    assert texts.count("test_user_warnings.py:") == 8 and "sum 1.82" in texts
    compiled = minidynamo.compile(warns, backend="eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(x), expected)
        assert written.readouterr().err == texts


def test_a_level_given_twice_raises_the_error_of_eager(written: pytest.CaptureFixture[str]) -> None:
    def warns_wrongly(x: torch.Tensor) -> torch.Tensor:
        warnings.warn("old", DeprecationWarning, 2, stacklevel=1)  # type: ignore[misc]
        return x * 2

    with pytest.raises(TypeError, match="stacklevel"):
        minidynamo.compile(warns_wrongly, backend="eager")(torch.ones(2))


def test_each_line_warns_once_under_the_default_filter(written: pytest.CaptureFixture[str]) -> None:
    compiled = minidynamo.compile(helper, backend="eager", fullgraph=True)
    compiled(torch.ones(2))
    written.readouterr()
    warnings.simplefilter("default")
    for _ in range(3):
        compiled(torch.ones(2))
    assert written.readouterr().err.count("FutureWarning: in a helper") == 1
    helper(torch.ones(2))  # the same line, by Python
    assert "in a helper" not in written.readouterr().err


def test_filters_of_the_moment_decide(written: pytest.CaptureFixture[str]) -> None:
    compiled = minidynamo.compile(helper, backend="eager", fullgraph=True)
    compiled(torch.ones(2))
    with warnings.catch_warnings(), no_recompile():
        warnings.simplefilter("ignore")
        written.readouterr()
        compiled(torch.ones(2))
        assert not written.readouterr().err


def test_a_warning_that_a_filter_turns_into_an_error_is_raised_at_its_line(written: object) -> None:
    def guarded(x: torch.Tensor, done: list[int]) -> torch.Tensor:
        y = x * 2
        try:
            warnings.warn("careful", stacklevel=1)
        except UserWarning:
            return y - 1
        done.append(1)
        return y + 1

    compiled, done = minidynamo.compile(guarded, backend="eager"), list[int]()
    results = []
    actions: tuple[Literal["always", "error"], ...] = ("always", "error", "always")
    for action in actions:
        warnings.resetwarnings()
        warnings.simplefilter(action)
        results.append(compiled(torch.ones(1), done).item())
    assert results == [3, 1, 3] and len(done) == 2


def test_collected_warnings_are_there_when_the_program_reads_them() -> None:
    def collects(x: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            y = x * 2
            warnings.warn("one", stacklevel=1)
            y = y + 1
        return y + len(caught)

    compiled = minidynamo.compile(collects, backend="eager")
    assert [compiled(torch.zeros(1)).item() for _ in range(2)] == [2, 2]


def outside(x: torch.Tensor) -> torch.Tensor:
    return deprecated(x, 4)


class Called(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return outside(x)  # its caller is in torch


def calls_from_c(x: torch.Tensor) -> torch.Tensor:
    return functools.reduce(deprecated, [2], x)


@pytest.mark.parametrize("program", [outside, calls_from_c, Called()])
def test_a_warning_for_a_line_outside_breaks_the_graph(
    program: Callable[[torch.Tensor], torch.Tensor], written: pytest.CaptureFixture[str]
) -> None:
    def runs(x: torch.Tensor) -> torch.Tensor:
        return program(x)

    compiled = minidynamo.compile(runs, backend="eager")
    expected, texts = runs(torch.ones(1)), written.readouterr().err
    assert torch.equal(compiled(torch.ones(1)), expected)
    assert written.readouterr().err.count("deprecated") == texts.count("deprecated")
    assert compiled.stats.graph_breaks > 0  # type: ignore[attr-defined]
