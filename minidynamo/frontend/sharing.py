"""Owns the sharing of entries among equal callables: the blocks of a model, closures over one code object.

Equal callables have the same code, globals and options; `compiled_function.py` finds them. If a call fits no entry of
its own function, the entries of equal callables are tried. An entry that fits is copied. The copy has the same guards,
graph and text. Its resume functions, callees, reruns and closure cells are those of the new owner.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Protocol

import torch.fx

from minidynamo.bytecode.breaks import make_break
from minidynamo.bytecode.layout import FramePoint
from minidynamo.core.artifacts import Artifact
from minidynamo.core.names import weakly
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic
from minidynamo.graph.boxed import BoxedCallable
from minidynamo.guards.cache import Entry
from minidynamo.tracer.capture.residual import ResidualContext
from minidynamo.tracer.runtime.graph_failures import Failure


class Owner(Protocol):
    """The compiled function of an entry: the methods that the body of the entry calls."""

    def resume_at(self, point: FramePoint) -> BoxedCallable:
        """Returns the boxed function that continues at `point`."""
        ...

    def compiled_callee(self, target: Any) -> Any:
        """Returns the function to call instead of `target`, which could not be inlined."""
        ...

    def graph_failed(self, diagnostic: Diagnostic) -> int:
        """Counts a graph that failed although the program does not fail; returns the number so far."""
        ...


@record(frozen=True, eq=False)
class Origin:
    """A compile of a frame, without references to the callable for which the frame was compiled."""

    #: the context of the residual program of the first owner
    context: ResidualContext
    #: the globals of the user's function
    namespace: dict[str, Any]
    #: `report(count, failure)` shows a failure of the graph to the user; `count` counts it
    report: Callable[[Callable[[Diagnostic], int], Failure], None]
    #: the captured graph
    graph: torch.fx.GraphModule | None = None
    #: the reason for the end of the graph, if the function goes on
    graph_break: Diagnostic | None = None
    #: the texts of the compile, also those of a backward that is compiled later
    texts: list[Artifact] = field(default_factory=list)
    #: the same object for all copies of an entry
    compile: object = field(default_factory=object)

    def owned_by(self, owner: Owner, run_eagerly: BoxedCallable) -> Origin:
        """Returns the record with a context whose functions are those of `owner`."""
        point = self.context.point
        failed = functools.partial(self.report, weakly(owner.graph_failed))
        context = replace(
            self.context,
            break_function=None if point is None else make_break(point, self.namespace, owner.resume_at),
            dispatcher_for=weakly(owner.compiled_callee),
            rerun=replace(self.context.rerun, run=run_eagerly, failed=failed),
        )
        return replace(self, context=context)

    def shared(self, entry: Entry, owner: Owner, run_eagerly: BoxedCallable, cells: Mapping[int, object]) -> None:
        """Makes `entry`, a copy of the entry of this record, an entry of `owner`. `cells` maps the id of each cell of
        the first owner to the cell of `owner`.
        """
        entry.origin = self.owned_by(owner, run_eagerly)
        entry.body = self.context.rebound(entry.body, entry.origin.context, cells)


def cells_of(one: types.FunctionType, other: types.FunctionType) -> dict[int, types.CellType] | None:
    """Maps the id of each cell of a closure to the cell of another closure over the same code.

    Returns None if a closure has the same cell twice, because an entry depends on that.
    """
    pairs = [*zip(one.__closure__ or (), other.__closure__ or ())]
    cells = {id(theirs): own for theirs, own in pairs}
    return cells if len(cells) == len({id(own) for _, own in pairs}) == len(pairs) else None
