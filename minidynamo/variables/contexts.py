"""Owns the trackers of context managers that the tracer understands itself.

Context managers written in Python are plain objects and are traced through their methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minidynamo.variables.base import VariableTracker


@dataclass(eq=False)
class ContextVariable(VariableTracker):
    """A context manager such as torch.no_grad(): `factory(*args)` makes the real one at run time.

    `saved` is the grad mode to go back to on exit; None while it has not been entered. `depth` is for those that only a
    real `__enter__` can open: in how many open blocks of their kind they were entered; None while they are not open.
    """

    factory: Callable[..., Any]
    args: tuple[Any, ...] = ()
    saved: Any = None
    depth: int | None = None

    @property
    def python_type(self) -> type:
        return self.factory if isinstance(self.factory, type) else object


@dataclass(eq=False)
class ContextExitVariable(VariableTracker):
    """The `__exit__` of an entered context manager while it waits on the stack."""

    context: ContextVariable

    @property
    def python_type(self) -> type:
        return object
