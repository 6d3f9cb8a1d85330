"""Owns the opcodes of the import statement, for modules that are already imported, and for modules that do not exist.

First imports are not here: Python does them natively, after a graph break."""

from __future__ import annotations

import importlib.util
import sys

from minidynamo.bytecode.instructions import Instruction
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Item, Source
from minidynamo.tracer.frames.exceptions import catch_raised, without_message
from minidynamo.tracer.frames.interpreter import Frame, Tracer
from minidynamo.tracer.handlers.imports import raise_if_missing
from minidynamo.tracer.opcodes.table import opcode
from minidynamo.tracer.records.constants import as_constant
from minidynamo.tracer.trace_rules import is_trusted_module
from minidynamo.variables.base import VariableTracker


@opcode("IMPORT_NAME")
def import_name(frame: Frame, instruction: Instruction) -> None:
    level, names = (as_constant(part) for part in frame.pop_many(2))
    name = instruction.argval
    if level:
        package = frame.namespace.get("__package__") or ""
        name = importlib.util.resolve_name("." * level + name, package)
    if sys.modules.get(name) is None:
        raise_if_missing(frame.tx, name)
        frame.tx.break_graph(
            "MD205",
            f"`import {name}` for the first time",
            why="Importing runs the module's code.",
            fix=f"Write `import {name}` at the top of the file.",
        )
    if not names and not level:
        name = name.partition(".")[0]
    module = sys.modules[name]
    source: Source = Constant(module, name.rpartition(".")[2])
    if not is_trusted_module(name):
        source = Item(Constant(sys.modules, "sys.modules"), name)
    frame.push(frame.tx.wrap(module, source))


@opcode("IMPORT_FROM")
def import_from(frame: Frame, instruction: Instruction) -> None:
    tx, module, name = frame.tx, frame.peek(), instruction.argval
    item = catch_raised(
        AttributeError, lambda: tx.getattr(module, name), lambda _: _raise_import_error(tx, module, name)
    )
    assert item is not None
    frame.push(item)


def _raise_import_error(tx: Tracer, module: VariableTracker, name: str) -> None:
    """Raises ImportError, unless a module of this name is loaded, which Python would return."""
    loaded = f"{as_constant(tx.getattr(module, '__name__'))}.{name}"
    if loaded in sys.modules:
        tx.break_graph("MD205", f"`{loaded}` is imported, which is no attribute of its package")
    tx.guard(Constant(sys.modules, "sys.modules"), GuardKind.MISSING_KEY, loaded)
    tx.raises(without_message(ImportError))
