"""Owns the trackers of context managers that the tracer models itself.

Context managers written in Python are plain objects and are traced through their methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minidynamo.variables.base import VariableTracker


@dataclass(eq=False)
class ContextVariable(VariableTracker):
    """A context manager such as torch.no_grad(): `factory(*args)` makes the real one at run time."""

    factory: Callable[..., Any]
    args: tuple[Any, ...] = ()
    #: The grad mode to restore on exit; None before the manager is entered.
    saved: Any = None
    #: For managers that need a real `__enter__`: the number of open blocks of the same kind at entry; None while not
    #: open.
    depth: int | None = None

    @property
    def python_type(self) -> type:
        return self.factory if isinstance(self.factory, type) else object


@dataclass(eq=False)
class ContextExitVariable(VariableTracker):
    """The `__exit__` of an entered context manager, on the stack."""

    python_type = object
    context: ContextVariable
