"""Owns drawing random numbers as torch does on a CPU, from its generator, but many at a time.

Dropout spends most of its time there. What is drawn, and what is left of the generator, is torch's to the last bit;
where that cannot be had, torch draws.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path

import torch

from minidynamo.codegen.runtime import library
from minidynamo.errors import BackendError
from minidynamo.locks import ForkSafeLock

aten = torch.ops.aten

FEWEST = 256
"""Elements from which on it is worth to take the generator's state out and to put it back."""

_drawing = ForkSafeLock()


def bernoulli(like: torch.Tensor, p: float) -> torch.Tensor:
    """`aten.bernoulli.p` by the default generator: a tensor in row-major order, with ones by probability `p`."""
    plain = like.dtype == torch.float32 and like.device.type == "cpu" and 0 <= p <= 1
    draw = _drawn_by_machine_code() if plain and like.numel() >= FEWEST else None
    if draw is None:
        drawn: torch.Tensor = aten.bernoulli.p(like, p)
        return drawn
    made = torch.empty(like.shape, dtype=torch.float32)
    with _drawing:
        draw(made, p)
    return made


@functools.cache
def _drawn_by_machine_code() -> Callable[[torch.Tensor, float], None] | None:
    """What fills a tensor, if there is a compiler and if what it draws is found to be what torch draws."""
    try:
        entry = library.load(Path(__file__).with_name("bernoulli.cpp").read_text(encoding="utf-8"), ["bernoulli"])
    except BackendError:
        return None
    draw = functools.partial(_draw, entry["bernoulli"], torch.default_generator)
    own = torch.Generator().manual_seed(7)
    return draw if _is_same(functools.partial(_draw, entry["bernoulli"], own), own) else None


def _draw(entry: library.Entry, generator: torch.Generator, out: torch.Tensor, p: float) -> None:
    state = generator.get_state()
    entry(out.data_ptr(), state.data_ptr(), out.numel(), math.ceil(p * 2**53))
    generator.set_state(state)


def _is_same(draw: Callable[[torch.Tensor, float], None], generator: torch.Generator) -> bool:
    """Whether torch draws the same from the same states, also where a draw ends within a block of the generator's."""
    if generator.get_state().numel() != 5056:
        return False
    for size, p in ((1, 0.5), (311, 0.9), (1000, 0.1), (3, 1.0), (700, 0.0)):
        before = generator.get_state()
        expected = torch.empty(size).bernoulli_(p, generator=generator)
        after = generator.get_state()
        generator.set_state(before)
        made = torch.empty(size)
        draw(made, p)
        if not torch.equal(made, expected) or not torch.equal(generator.get_state(), after):
            return False
    return True
