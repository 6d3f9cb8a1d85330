"""Owns the opcodes that move values between the stack, locals, cells, globals and constants, and the import statement
for modules that are already imported or do not exist.

Attributes and subscripts are not here, but in `operators.py`. First imports are not here: Python does them natively,
after a graph break.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
from typing import Any, NoReturn

from minidynamo.bytecode.instructions import NULL_ABOVE_CALLABLE, Instruction
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Item, Source, global_source
from minidynamo.tracer.capture.finalizers import VISIBLE_DEATH, record_unbinding
from minidynamo.tracer.frames.exceptions import catch_raised, without_message
from minidynamo.tracer.frames.interpreter import NULL, Frame, Tracer
from minidynamo.tracer.handlers.imports import raise_if_missing
from minidynamo.tracer.opcodes.table import opcode
from minidynamo.tracer.records.constants import as_constant, from_constant
from minidynamo.tracer.records.side_effects import DELETED
from minidynamo.tracer.trace_rules import is_library_value, is_trusted_module
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import CellVariable


@opcode("NOP", "RESUME", "PRECALL", "COPY_FREE_VARS")
def nothing(frame: Frame, instruction: Instruction) -> None:
    pass


@opcode("POP_TOP", "END_FOR")
def pop_top(frame: Frame, instruction: Instruction) -> None:
    frame.stack.pop()


@opcode("COPY")
def copy(frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.stack[-instruction.argval])


@opcode("SWAP")
def swap(frame: Frame, instruction: Instruction) -> None:
    stack, depth = frame.stack, instruction.argval
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


@opcode("PUSH_NULL")
def push_null(frame: Frame, instruction: Instruction) -> None:
    frame.push(NULL)


@opcode("LOAD_CONST")
def load_const(frame: Frame, instruction: Instruction) -> None:
    value = instruction.argval
    # A code object is the operand of a later MAKE_FUNCTION.
    frame.push(ConstantVariable(value) if isinstance(value, type(frame.code)) else from_constant(value, literal=True))


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.tx.wrap(AssertionError, Constant(AssertionError, "AssertionError")))


@opcode("LOAD_BUILD_CLASS")
def load_build_class(frame: Frame, instruction: Instruction) -> None:
    # Its call breaks the graph.
    frame.push(frame.tx.wrap(builtins.__build_class__, Constant(builtins.__build_class__, "__build_class__")))


# Locals


def raise_unbound(frame: Frame, name: str) -> NoReturn:
    """Raises the error for a local or closed-over variable without a value."""
    variable = name.removesuffix(" (local)")
    unbound = "where it is not associated with a value"
    if name in frame.code.co_freevars:
        message = f"cannot access free variable {variable!r} {unbound} in enclosing scope"
        frame.tx.raises(NameError(message), exact=True, name=ConstantVariable(variable))
    message = f"cannot access local variable {variable!r} {unbound}"
    frame.tx.raises(UnboundLocalError(message), exact=True, name=ConstantVariable(None))


def read_local(frame: Frame, name: str) -> VariableTracker:
    value = frame.local_slots.get(name)
    if value is None:
        raise_unbound(frame, name)
    value = frame.local_slots[name] = value.realized()
    return value


@opcode("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(frame: Frame, instruction: Instruction) -> None:
    # Since 3.13 the same opcode loads a cell, for a closure.
    cell = frame.cells.get(instruction.argval)
    frame.push(cell if cell is not None else read_local(frame, instruction.argval))


@opcode("LOAD_FAST_LOAD_FAST")
def load_fast_load_fast(frame: Frame, instruction: Instruction) -> None:
    for name in instruction.argval:
        frame.push(frame.cells.get(name) or read_local(frame, name))


@opcode("STORE_FAST_LOAD_FAST")
def store_fast_load_fast(frame: Frame, instruction: Instruction) -> None:
    stored, loaded = instruction.argval
    _store(frame, stored)
    frame.push(frame.cells.get(loaded) or read_local(frame, loaded))


@opcode("STORE_FAST_STORE_FAST")
def store_fast_store_fast(frame: Frame, instruction: Instruction) -> None:
    for name in instruction.argval:
        _store(frame, name)


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    cell = frame.cells.pop(name) if name in frame.cells else None
    frame.push(cell or frame.read_local(name) or NULL)
    frame.write_local(name, None)


@opcode("STORE_FAST", "STORE_FAST_MAYBE_NULL")
def store_fast(frame: Frame, instruction: Instruction) -> None:
    _store(frame, instruction.argval)


def _store(frame: Frame, name: str) -> None:
    """Moves the top of the stack to a local without realizing it; the value may also be a cell or NULL."""
    _break_if_death_runs_code(frame, name)
    value = frame.stack.pop()
    frame.cells.pop(name, None)
    if isinstance(value, CellVariable):
        frame.cells[name] = value
    else:
        frame.write_local(name, value if isinstance(value, VariableTracker) else None)


@opcode("DELETE_FAST")
def delete_fast(frame: Frame, instruction: Instruction) -> None:
    if instruction.argval not in frame.local_slots:
        read_local(frame, instruction.argval)
    _break_if_death_runs_code(frame, instruction.argval)
    frame.write_local(instruction.argval, None)


def _break_if_death_runs_code(frame: Frame, name: str) -> None:
    """Breaks the graph, so that Python drops the value, if its death runs code."""
    if record_unbinding(frame, name):
        frame.tx.break_graph("MD206", VISIBLE_DEATH, why="The program observes when the object dies.")


# Cells


@opcode("MAKE_CELL")
def make_cell(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    frame.cells[name] = CellVariable(frame.local_slots.get(name))
    frame.write_local(name, None)


@opcode("LOAD_CLOSURE")
def load_closure(frame: Frame, instruction: Instruction) -> None:
    frame.push(frame.cells[instruction.argval])


@opcode("LOAD_DEREF")
def load_deref(frame: Frame, instruction: Instruction) -> None:
    value = frame.lazy_cell(frame.cells[instruction.argval])
    if value is None:
        raise_unbound(frame, instruction.argval)
    frame.push(value)


@opcode("STORE_DEREF")
def store_deref(frame: Frame, instruction: Instruction) -> None:
    write_cell(frame, frame.cells[instruction.argval], frame.pop_lazy())


@opcode("DELETE_DEREF")
def delete_deref(frame: Frame, instruction: Instruction) -> None:
    cell = frame.cells[instruction.argval]
    if frame.read_cell(cell) is None:
        raise_unbound(frame, instruction.argval)
    write_cell(frame, cell, None)


def write_cell(frame: Frame, cell: CellVariable, value: VariableTracker | None) -> None:
    cell.contents = value
    frame.tx.side_effects.set_cell(cell, value)


# Globals


@opcode("LOAD_GLOBAL")
def load_global(frame: Frame, instruction: Instruction) -> None:
    value = read_global(frame, instruction.argval)
    if instruction.flag and not NULL_ABOVE_CALLABLE:
        frame.push(NULL)
    frame.push(value)
    if instruction.flag and NULL_ABOVE_CALLABLE:
        frame.push(NULL)


def read_global(frame: Frame, name: str) -> VariableTracker:
    tx, namespace = frame.tx, frame.namespace
    written = tx.side_effects.read_global(namespace, name)
    if isinstance(written, VariableTracker):
        return written
    if written is not DELETED and name in namespace:
        value = namespace[name]
        trusted = frame.trusted and is_library_value(value)
        if trusted:
            return tx.wrap(value, Constant(value, name))
        return tx.lazy(value, global_source(namespace, name))
    if not frame.trusted and written is not DELETED:
        tx.guard(namespace_source(namespace), GuardKind.MISSING_KEY, name)
    known: Any = namespace.get("__builtins__", builtins)
    known = known if isinstance(known, dict) else vars(known)
    written = tx.side_effects.read_global(known, name)
    if isinstance(written, VariableTracker):
        return written
    if name not in known or written is DELETED:
        if name not in known and not frame.trusted:
            tx.guard(Constant(known, "builtins", hidden=True), GuardKind.MISSING_KEY, name)
        tx.raises(NameError(f"name {name!r} is not defined"), exact=True, name=ConstantVariable(name))
    return tx.wrap(known[name], Constant(known[name], name))


def namespace_source(namespace: dict[str, Any]) -> Source:
    return Constant(namespace, "G", hidden=True)


@opcode("STORE_GLOBAL")
def store_global(frame: Frame, instruction: Instruction) -> None:
    frame.tx.side_effects.set_global(frame.namespace, instruction.argval, frame.pop_lazy())


@opcode("DELETE_GLOBAL")
def delete_global(frame: Frame, instruction: Instruction) -> None:
    read_global(frame, instruction.argval)
    frame.tx.side_effects.set_global(frame.namespace, instruction.argval, None)


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
