"""Owns the tracker of symbolic numbers: sizes of tensors, arguments, and numbers computed from these.

Arithmetic is in `tracer/numbers/arithmetic.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.fx

from minidynamo.variables.base import OF_CLS, VariableTracker
from minidynamo.variables.constants import ConstantVariable


@dataclass(frozen=True)
class Computation:
    """The expression that computed a number. Empty if the number was not computed, or in an unknown way."""

    #: The text of the operation.
    text: str = ""
    operands: tuple[VariableTracker, ...] = ()
    #: The nesting depth of the expression.
    depth: int = 0


@dataclass(eq=False)
class NumberVariable(VariableTracker):
    """An int or float that Python can compute from the frame's arguments, as `source` describes."""

    python_type = OF_CLS
    #: A torch.SymInt, or the float of this call.
    value: Any
    #: int or float.
    cls: type
    #: Specializes the number: guards its value and returns it.
    specialize: Callable[[], Any]
    #: Computes the number in the graph; None until the graph needs it.
    node: torch.fx.Node | None = None
    #: How the program computed the number. An equal number may be found elsewhere, but as a different object.
    computation: Computation = Computation()
    #: The constant after `specialize`.
    specialized: ConstantVariable | None = None
    #: Whether the number is an argument of a function that must not receive a symbol.
    plain: bool = False

    @property
    def unguarded_value(self) -> Any:
        """The number in this call; nothing is guarded."""
        return self.value.node.hint if isinstance(self.value, torch.SymInt) else self.value
