"""Owns loops over the modules of a container (`for module in self:` in `nn.Sequential`) that a graph break cuts.

Python's iterators hide their position, so the continuation of a frame could not trace the rest of a loop. An iterator
that only the loop holds is handed over as a `ModuleIterator`, and the rest of the loop is traced with the rest of the
frame, unless the graph breaks again in the same loop: then each iteration runs as it does for iterators from outside.
Other iterators are handed over as they are.
"""

from __future__ import annotations

from dataclasses import replace

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import InstanceAttr, Local
from minidynamo.tracer.capture.trace import Trace
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.reachable import reachable
from minidynamo.tracer.records.traced_frame import Null, StackSlot
from minidynamo.tracer.runtime.module_iterator import ModuleIterator
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictVariable
from minidynamo.variables.iterators import DictIterator


class BreaksInLoop(Exception):
    """The graph breaks in a loop whose iterator was opened."""


def stack_at_cut(frame: Frame) -> tuple[VariableTracker | Null, ...]:
    """Returns the stack of a frame that is cut. Iterators over modules that only the stack holds are marked."""
    stack = tuple(value if isinstance(value, Null) else value.realized() for value in frame.stack)
    loops = [value for value in stack if isinstance(value, DictIterator) and _is_over_modules(frame, value)]
    for loop in loops:
        others = [value for value in stack if not isinstance(value, Null) and value is not loop]
        held, _ = reachable([*others, *frame.local_slots.values(), *frame.cells.values()], frame.tx.side_effects)
        if loop not in held and stack.count(loop) == 1:
            marked = replace(loop, only_on_stack=True)
            stack = tuple(marked if value is loop else value for value in stack)
    return stack


def _is_over_modules(frame: Frame, iterator: DictIterator) -> bool:
    """Returns whether a loop is over the submodules of a module, all of which existed before the call."""
    table = iterator.mapping
    is_table = isinstance(table.source, InstanceAttr) and table.source.name == "_modules"
    is_unfinished = bool(iterator.keys) and not frame.tx.side_effects.is_changed(table)
    return is_table and is_unfinished and iterator.kind == "values" and not iterator.is_reversed


def opened(tx: Trace, slot: StackSlot) -> DictIterator | None:
    """Returns the tracker of an iterator over modules; None for every other value."""
    iterator = slot.value
    if type(iterator) is not ModuleIterator or len(iterator.table) != iterator.length:
        return None
    source = Local(slot.name)
    tx.graph.guard(source, GuardKind.TYPE, ModuleIterator)
    tx.graph.guard(InstanceAttr(source, "position"), GuardKind.EQUALS, iterator.position)
    table = tx.wrap(iterator.table, InstanceAttr(source, "table"))
    if not isinstance(table, DictVariable):
        return None
    return DictIterator(table, "values", tuple(table.items), iterator.position, is_opened=True)


def refuse_breaks_in_loops(frame: Frame) -> None:
    """Raises BreaksInLoop if an opened iterator is on the stack of a frame whose graph breaks."""
    if any(isinstance(value, DictIterator) and value.is_opened for value in frame.stack):
        raise BreaksInLoop
