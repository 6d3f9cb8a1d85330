"""Owns the choice of models that are compared with eager: all rows of `benchmarks/library_programs.py`, and all
architectures of examples/models."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from torch import nn

from benchmarks.library_programs import PROGRAMS, Program
from benchmarks.library_worker import INPUTS, Step, make
from examples.models import ARCHITECTURES
from minidynamo.observe.comparison import seed_generators

PARTS = 20
STEP = Step(batch=2, length=8, training=True)
#: From the 2 values left in deep layers, batch norm computes 1 and -1 and no gradient.
STEP_OF_PICTURES = replace(STEP, batch=4)


@dataclass(frozen=True)
class Case:
    """A model, and the positional and named arguments of one call."""

    make: Callable[[], nn.Module]
    call: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
    #: The number of the first call's data.
    data: int = 0

    def inputs(self, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of call `number`."""
        seed_generators(self.data + number)
        return self.call()

    def with_other_data(self) -> Case:
        """Returns the same model with different arguments."""
        return replace(self, data=self.data + 100)


def _short(program: Program) -> Program:
    """Uses one layer instead of two in libraries that randomly skip layers: every random skip ends a graph."""
    keys = {"encoder_layers", "decoder_layers", *(("num_hidden_layers",) if program.inputs == "sound" else ())}
    return replace(program, settings={**program.settings, **dict.fromkeys(keys & program.settings.keys(), 1)})


def _library_inputs(program: Program) -> tuple[tuple[Any, ...], dict[str, Any]]:
    step = STEP_OF_PICTURES if program.inputs in ("pictures", "timm") else STEP
    return (), dict(INPUTS[program.inputs](step))


CASES = {
    name: Case(partial(make, _short(program)), partial(_library_inputs, program))
    for name, program in PROGRAMS.items()
    if program.generate is None and not program.lora
}
CASES |= {
    name: Case(architecture.make, lambda architecture=architecture: (architecture.inputs(), {}))
    for name, architecture in ARCHITECTURES.items()
}


def rotating(rows: Iterable[Any], day: int | None = None, minor: int = sys.version_info.minor) -> list[Any]:
    """Returns parameters of a test, all but a twentieth marked slow: the twentieth depends on the interpreter and the
    day."""
    day = datetime.date.today().toordinal() if day is None else day
    turn = (3 * day + minor) % PARTS
    return [
        pytest.param(
            *(row if isinstance(row, tuple) else (row,)), marks=() if index % PARTS == turn else pytest.mark.slow
        )
        for index, row in enumerate(rows)
    ]
