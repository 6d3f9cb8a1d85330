"""Owns the record of what the user asked of `compile`, and of the backend as frames need it.

It checks nothing; `api.py` makes it from checked arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.fx

from minidynamo.boxed import BoxedCallable


@dataclass(frozen=True)
class GraphCompiler:
    """A backend as frames need it: `run(gm, example_inputs)` returns a boxed callable or raises BackendError."""

    name: str
    key: Any
    run: Callable[[torch.fx.GraphModule, Sequence[Any]], BoxedCallable]


@dataclass(frozen=True)
class CompileOptions:
    """What the user asked of `compile`, checked."""

    backend: GraphCompiler
    fullgraph: bool = False
    steal: frozenset[str] = frozenset()
    on_error: str = "raise"
    recompile_limit: int = 8
    name: str | None = None

    def for_callee(self) -> CompileOptions:
        """The options for a function that is called at a graph break: those that do not name this one's arguments."""
        return replace(self, steal=frozenset(), name=None)
