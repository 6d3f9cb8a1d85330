"""Texts of numbers that differ from call to call: formatted again where they leave the frame, guarded where they
matter."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import minidynamo

THREE, ONE = "%d %5.2f %s", "100%% %03d"
TEXTS: dict[str, Callable[[Tensor, int, float], object]] = {
    "f-string": lambda x, n, rate: f"step {n}",
    "two numbers": lambda x, n, rate: f"{n}/{rate} {{}}",
    "formats": lambda x, n, rate: f"{n:>4}|{n:+d}|{n:x}|{rate:.3e}|{rate:8.2f}|{n:,}",
    "a nested format": lambda x, n, rate: f"{rate:{n}.{n}f}",
    "conversions": lambda x, n, rate: f"{n!r} {rate!s} {n=}",
    "str and repr": lambda x, n, rate: (str(n), repr(rate), str(-rate)),
    "computed": lambda x, n, rate: f"{n * 2 + 1} {rate / 3}",
    "a text of a text": lambda x, n, rate: f"<{f'{n}'}>" + str(f"{rate}"),
    "format": lambda x, n, rate: "{} {:.1f} {0!r}".replace("{0!r}", "{a}").format(n, rate, a=n),
    "percent": lambda x, n, rate: (THREE % (n, rate, "a"), ONE % n, ONE % rate),
    "sums": lambda x, n, rate: "a" + str(n) + "b" + str(rate),
    "join": lambda x, n, rate: "-".join([str(n), "x", f"{rate}"]),
    "a size": lambda x, n, rate: (f"{x.shape}", str(x.shape), repr((n, 1)), str([rate, n])),
    "a character": lambda x, n, rate: f"{n:c}",
    "read": lambda x, n, rate: (len(f"{n}"), f"{n}" == "7", f"{n}".zfill(3), f"{n}"[0]),
    "a key": lambda x, n, rate: {f"k{n}": n},
    "identity": lambda x, n, rate: [t := f"{n}", t, t is f"{n}"],
}
READS_THEM = ("a nested format", "a character", "read", "a key", "identity")


@pytest.mark.parametrize("name", TEXTS)
def test_one_version_serves_all_numbers(name: str) -> None:
    function = TEXTS[name]
    compiled = minidynamo.compile(lambda x, n, rate: (x * n, function(x, n, rate)), backend="eager", fullgraph=True)
    for n, rate in ((5, 0.5), (7, -1e30), (40, 3.0), (99, float("1e-7")), (12, 2.25)):
        _, text = compiled(torch.ones(n), n, rate)
        assert text == function(torch.ones(n), n, rate)
        if name == "identity":
            assert text[0] is text[1]
    if name not in READS_THEM:
        assert compiled.stats.graphs == 2


def test_printed_text_costs_no_version(capsys: pytest.CaptureFixture[str]) -> None:
    def step(x: Tensor, n: int) -> Tensor:
        y = x * n
        print(f"step {n}: {tuple(x.shape)}")
        return y + 1

    compiled = minidynamo.compile(step, backend="eager")
    for n in range(2, 12):
        assert torch.equal(compiled(torch.ones(n), n), torch.ones(n) * n + 1)
    assert capsys.readouterr().out == "".join(f"step {n}: ({n},)\n" for n in range(2, 12))
    assert compiled.stats.graphs <= 4


def test_a_stored_text_is_what_it_was_when_it_was_made() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps, self.note = 0, ""
            self.log: list[str] = []

        def forward(self, x: Tensor) -> Tensor:
            self.note = f"before {self.steps}"
            self.steps += 1
            self.log.append(f"after {self.steps}")
            return x + self.steps

    counter = minidynamo.compile(Counter(), backend="aot_eager")
    for step in range(9):
        assert counter(torch.zeros(1)).item() == step + 1
        assert counter.note == f"before {step}"
    assert counter.log == [f"after {step}" for step in range(1, 10)]
    assert minidynamo.stats(counter).graphs == 2


def test_a_text_that_decides_is_guarded() -> None:
    def pick(x: Tensor, n: int) -> Tensor:
        return x + 1 if f"{n}".endswith("0") else x - 1

    compiled = minidynamo.compile(pick, backend="eager", recompile_limit=20)
    for n in (10, 11, 20, 21, 30, 31):
        assert torch.equal(compiled(torch.zeros(2), n), pick(torch.zeros(2), n))


def test_an_error_says_the_number_of_its_call() -> None:
    def check(x: Tensor, holder: Any) -> Tensor:
        if holder.n > 10:
            raise ValueError(f"{holder.n} is too large for {tuple(x.shape)}")
        return x * holder.n

    compiled = minidynamo.compile(check, backend="eager")
    holder = SimpleNamespace(n=0)
    for n in (1, 2, 3, 11, 12, 4, 13):
        holder.n = n
        if n > 10:
            with pytest.raises(ValueError, match=rf"^{n} is too large for \(3,\)$"):
                compiled(torch.ones(3), holder)
        else:
            assert torch.equal(compiled(torch.ones(3), holder), torch.full((3,), float(n)))
