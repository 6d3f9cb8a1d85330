"""Owns the check that a host program reads bound names only: after their definition and before their death.

Nothing is repaired: a violation is a bug of the memory planner and raises InternalError.
"""

from __future__ import annotations

from minidynamo.codegen.ir.loops import Compute, Extern, GetItem
from minidynamo.codegen.memory.plan import Allocate, Free, HostProgram, Overwrite, Reuse, Step, mentioned, read_by
from minidynamo.errors import Diagnostic, InternalError


def verify_host(program: HostProgram) -> None:
    """Checks that each name is bound when a step reads it."""
    bound = {*program.inputs, *program.constants}
    for step in (*program.prelude, *program.steps):
        read = mentioned(step.args) if isinstance(step, Compute) else read_by(step)
        missing = next((name for name in read if name not in bound), None)
        if missing is not None:
            what = f"the host program of {program.name} reads {missing}, which is not bound there"
            raise InternalError(Diagnostic("MD510", what, why=f"The step is {type(step).__name__}: {step}"))
        bound -= _unbound_by(step)
        bound |= _bound_by(step)


def _unbound_by(step: Step | Compute) -> set[str]:
    match step:
        case Reuse():
            return {step.source}
        case Free():
            return {*step.names}
    return set()


def _bound_by(step: Step | Compute) -> set[str]:
    match step:
        case Allocate() | Reuse() | Overwrite():
            return {step.buffer.name}
        case Extern() | GetItem() | Compute():
            return {step.out}
    return set()
