"""Owns the host program as data: allocations, launches, calls and frees, in order.

Owns the step types, the properties of a program that need no device, and the check that each step reads bound names
only: after their definition and before their death. `memory/planner.py` chooses the steps; the host printer writes the
steps as Python.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from minidynamo.codegen.ir.expr import Scalar
from minidynamo.codegen.ir.loops import Buffer, Compute, Extern, GetItem, Kernel, Name
from minidynamo.codegen.ir.size import Size, size_of, symbols_of
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, InternalError


@record(frozen=True)
class Allocate:
    """`buffer.name = an uninitialized tensor` with the sizes, strides, dtype and device of the buffer."""

    #: The new tensor.
    buffer: Buffer


@record(frozen=True)
class Reuse:
    """`buffer.name = source`: gives the memory of a dead tensor a new name. The name `source` is unbound after this
    step."""

    #: The new tensor: dtype, device and number of elements are those of `source`.
    buffer: Buffer
    #: The name of the dead tensor.
    source: str
    #: Whether `buffer` has other sizes and strides than `source`.
    relaid: bool = False


@record(frozen=True)
class Overwrite:
    """`buffer.name = source`: the next step computes `buffer` in memory that stays in use under the name `source`
    too."""

    #: The value to compute.
    buffer: Buffer
    #: An input, or a value that was computed in the memory of an input.
    source: str


@record(frozen=True)
class Launch:
    """Launches a kernel on tensors.

    A tensor may be passed twice, as a read and as a write: then each element is read before it is written, in the same
    iteration and at the same offset.
    """

    #: The kernel.
    kernel: Kernel
    #: `args[i]` is the host name of `kernel.arguments[i]`.
    args: tuple[str, ...]


@record(frozen=True)
class Free:
    """`del names`, after the last use."""

    #: The names to delete; tensors or tuples of tensors.
    names: tuple[str, ...]


class Handing(enum.IntEnum):
    """The results that a host program hands over."""

    NONE = 0
    #: All, unless they are small together.
    LARGE = 1
    #: All, in steps (`graph/boxed.py`).
    IN_STEPS = 2


@record(frozen=True)
class HandOver:
    """Passes a result to the caller before the program ends. Later steps do not need it."""

    #: The result.
    name: str
    #: The index of `name` in `HostProgram.outputs`.
    position: int


@record(frozen=True)
class Return:
    """Returns the outputs."""

    #: `HostProgram.outputs`: Names, constants and None.
    values: tuple[Any, ...]
    #: Outputs that torch has written to, and counted in their version counters, although they are new to the caller.
    #: The host program resets their counters.
    versions_to_reset: tuple[str, ...] = ()


Step = Allocate | Reuse | Overwrite | Launch | Extern | GetItem | Free | HandOver | Return


def read_by(step: Step) -> Iterator[str]:
    """Yields the names that a step reads: tensors and numbers, with the numbers in sizes and in scalar arguments of
    kernels."""
    match step:
        case Allocate():
            yield from mentioned((step.buffer.shape, step.buffer.stride))
        case Reuse() | Overwrite():
            yield step.source
            if isinstance(step, Overwrite) or step.relaid:
                yield from mentioned((step.buffer.shape, step.buffer.stride))
        case Launch():
            yield from step.args
            for number in step.kernel.numbers:
                yield from (number.name,) if isinstance(number, Scalar) else mentioned(size_of(number))
        case Extern():
            yield from mentioned((step.args, tuple(value for _, value in step.kwargs)))
        case GetItem():
            yield step.source
        case Free():
            yield from step.names
        case HandOver():
            yield step.name
        case Return():
            yield from mentioned(step.values)
            yield from step.versions_to_reset
    if isinstance(step, (Extern, GetItem)) and step.layout is not None:
        yield from mentioned((step.layout.shape, step.layout.stride))  # the check of the result


def mentioned(value: object) -> Iterator[str]:
    """Yields the names in an argument, with the names in sizes."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from mentioned(item)
    elif isinstance(value, Size):
        yield from (symbol.name for symbol in symbols_of(value))
    elif isinstance(value, Name):
        yield value.name


@record(frozen=True)
class HostProgram:
    """The host program of one graph."""

    #: The name of the graph, for file names.
    name: str
    #: The names of the items of the boxed argument list, in order.
    inputs: tuple[str, ...]
    #: The steps, in order.
    steps: tuple[Step, ...]
    #: The kernels of the Launch steps, in order; all distinct.
    kernels: tuple[Kernel, ...]
    #: Names and constants, one per output of the graph.
    outputs: tuple[Any, ...]
    #: Name -> tensor of the graph, bound in the namespace of the host program.
    constants: Mapping[str, Any] = field(default_factory=dict)
    #: Name -> layout, for the inputs that are tensors.
    input_buffers: Mapping[str, Buffer] = field(default_factory=dict)
    #: The numbers to compute before the first step.
    prelude: tuple[Compute, ...] = ()
    #: The results that are handed over; they are gradients for autograd.
    handing_over: Handing = Handing.NONE


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
