"""Owns the tracker of numbers that differ from call to call: sizes of tensors, arguments, what is computed of them.

It computes nothing; `tracer/numbers/arithmetic.py` does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.fx

from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable


@dataclass(frozen=True)
class Made:
    """How a number was computed: the text of an operation with its operands, of which `depth` stand one in another.

    Without a text it was not computed, or not by what is known here.
    """

    text: str = ""
    operands: tuple[VariableTracker, ...] = ()
    depth: int = 0


@dataclass(eq=False)
class NumberVariable(VariableTracker):
    """An int or float (`cls`) that Python can compute from the frame's arguments: `source` says how.

    `value` is a torch.SymInt, or the float of this call. `pin()` makes a constant of it: it guards the value, which it
    gives. `node` computes it in the graph; None until the graph needs it. `made` says how the program has computed
    it: the same number may be found elsewhere, but as another object. `pinned` is the constant that it has become.
    Where it is `plain`, a function takes it that must not see a symbol.
    """

    value: Any
    cls: type
    pin: Callable[[], Any]
    node: torch.fx.Node | None = None
    made: Made = Made()
    pinned: ConstantVariable | None = None
    plain: bool = False

    @property
    def python_type(self) -> type:
        return self.cls

    @property
    def here(self) -> Any:
        """The number in this call; nothing is guarded."""
        return self.value.node.hint if isinstance(self.value, torch.SymInt) else self.value


@dataclass(eq=False)
class SeededGenerator(VariableTracker):
    """A `random.Random` that the program has made with a known seed. `value` is in the state that it has by now."""

    value: random.Random

    @property
    def python_type(self) -> type:
        return random.Random
