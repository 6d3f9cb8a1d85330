"""Owns the comparison of the peak memory of random training programs with eager's.

`random_programs.py` generates the programs; each is used in one of several ways, which decide when results die.
`python -m benchmarks peaks` prints the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import minidynamo
from benchmarks.memory import peak_bytes
from benchmarks.random_programs import arguments, load, random_program

Made = list[torch.Tensor]
COLUMNS = ("", "programs", "above eager", "least", "median", "most")

#: The largest accepted peak of a program, of eager's.
LIMIT = 1.05


def held(made: Made) -> torch.Tensor:
    """Keeps the results until the end of backward, each with a separate gradient."""
    return sum((value.square().mean() for value in made), torch.zeros(()))


class _HandedIn(torch.autograd.Function):
    """Keeps no results, and has gradients for all of them."""

    @staticmethod
    def forward(ctx: Any, *made: torch.Tensor) -> torch.Tensor:
        ctx.layouts = [(value.shape, value.dtype) for value in made]
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.rand(shape, dtype=dtype) for shape, dtype in ctx.layouts)


def handed_in(made: Made) -> torch.Tensor:
    """Keeps the results, and passes all their gradients at once, each in separate memory."""
    total: torch.Tensor = _HandedIn.apply(*made)  # type: ignore[no-untyped-call]
    return total


def dropped(made: Made) -> torch.Tensor:
    """Frees each result before backward, and passes a single number as its gradient."""
    total = sum((value.sum() for value in made), torch.zeros(()))
    made.clear()
    return total


def one_by_one(made: Made) -> torch.Tensor:
    """Frees each result after its last read."""
    total = torch.zeros(())
    while made:
        total = total + made.pop().square().mean()
    return total


def the_first(made: Made) -> torch.Tensor:
    """Keeps the remaining results, without gradients."""
    return made[0].sum()


def without_the_first(made: Made) -> torch.Tensor:
    """Drops the first of several results unused."""
    del made[: len(made) > 1]
    return held(made)


def without_the_last(made: Made) -> torch.Tensor:
    """Drops the last of several results unused."""
    del made[max(1, len(made) - 1) :]
    return dropped(made)


WAYS: tuple[Callable[[Made], torch.Tensor], ...] = (
    held,
    handed_in,
    dropped,
    one_by_one,
    the_first,
    without_the_first,
    without_the_last,
)


@dataclass(frozen=True)
class Peak:
    """The bytes that a step of a program needs in eager and compiled."""

    seed: int
    eager: int
    compiled: int

    @property
    def share(self) -> float:
        """The compiled program's part of eager's bytes."""
        return self.compiled / self.eager


def measure(seed: int, backend: str, dynamic: bool | None = None) -> Peak | None:
    """Returns the peaks of the program and the use of a seed; the arguments of every other seven are no leaves.
    `dynamic`: sizes vary. None where eager refuses the program."""
    text, way, computes = random_program(seed), WAYS[seed % len(WAYS)], seed // len(WAYS) % 2
    try:
        eager = _peak(load(text), way, bool(computes))
    except RuntimeError:  # values read after a write have been saved
        return None
    compiled = minidynamo.compile(load(text), backend=backend, fullgraph=True, dynamic=dynamic)
    return Peak(seed, eager, _peak(compiled, way, bool(computes)))


def _peak(
    call: Callable[[torch.Tensor, torch.Tensor], object], way: Callable[[Made], torch.Tensor], computes: bool
) -> int:
    """Returns the bytes of a step after the first step, which compiles."""
    x, w = arguments()

    def step() -> None:
        torch.manual_seed(0)
        found = call(x * 1, w * 1) if computes else call(x, w)
        made: Made = list(found) if isinstance(found, tuple) else [found]  # type: ignore[list-item]
        del found
        way(made).backward()

    step()
    x.grad = w.grad = None
    return peak_bytes(step)


def peaks(seeds: Sequence[int], backend: str, dynamic: bool | None = None) -> Iterator[Peak]:
    """Returns the peaks of programs, as far as eager runs the programs."""
    return (found for found in (measure(seed, backend, dynamic) for seed in seeds) if found is not None)


def row(backend: str, found: Sequence[Peak]) -> list[str]:
    """Returns the cells of a backend: programs, programs above eager, and the range of shares."""
    shares = sorted(peak.share for peak in found)
    above = sum(peak.compiled > peak.eager for peak in found)
    cells = [f"{share:.2f}" for share in (shares[0], shares[len(shares) // 2], shares[-1])]
    return [backend, str(len(found)), str(above), *cells]
