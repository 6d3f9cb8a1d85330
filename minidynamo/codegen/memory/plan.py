"""Owns the host program: what happens on the device, in order, as data.

It holds the step types and what can be computed from them without a device. Who decides the steps is
`memory/planner.py`; how they are spelled as Python is the host printer's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from minidynamo.codegen.ir.expr import Scalar
from minidynamo.codegen.ir.loops import Buffer, Compute, Extern, GetItem, Kernel, Name
from minidynamo.codegen.ir.size import Size, hint, size_of, symbols_of


@dataclass(frozen=True)
class Allocate:
    """`buffer.name = an uninitialized tensor` of the buffer's sizes, strides, dtype and device."""

    buffer: Buffer


@dataclass(frozen=True)
class Reuse:
    """`buffer.name = source`: a dead tensor of the same dtype and device, and of as many elements, gets a new name, and
    other sizes and strides if it is `relaid`.

    The old name is gone behind this step.
    """

    buffer: Buffer
    source: str
    relaid: bool = False


@dataclass(frozen=True)
class Place:
    """`buffer.name = source`: what is computed next is written over an input, or over a value that lies in one."""

    buffer: Buffer
    source: str


@dataclass(frozen=True)
class Launch:
    """Run a kernel on tensors. `args[i]` is the host name for `kernel.arguments[i]`.

    One tensor may be passed twice, as a read and as a write: then each element is read before it is written, in the
    same iteration and at the same offset.
    """

    kernel: Kernel
    args: tuple[str, ...]


@dataclass(frozen=True)
class Free:
    """`del names`: behind the last use."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class HandOver:
    """The caller may take the result `name`, which is returned at `position`: nothing here needs it any more."""

    name: str
    position: int


@dataclass(frozen=True)
class Return:
    """The outputs: Names, constants and None. Torch has written to the `counted` ones, which are new to the caller."""

    values: tuple[Any, ...]
    counted: tuple[str, ...] = ()


Step = Allocate | Reuse | Place | Launch | Extern | GetItem | Free | HandOver | Return


def read_by(step: Step) -> Iterator[str]:
    """Every name that a step reads: tensors and numbers, those in sizes and in scalar arguments of kernels included."""
    match step:
        case Allocate():
            yield from mentioned((step.buffer.shape, step.buffer.stride))
        case Reuse() | Place():
            yield step.source
            if isinstance(step, Place) or step.relaid:
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
            yield from step.counted
    if isinstance(step, (Extern, GetItem)) and step.layout is not None:
        yield from mentioned(step.layout.stride)


def mentioned(value: object) -> Iterator[str]:
    """Every name in an argument, those in sizes included."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from mentioned(item)
    elif isinstance(value, Size):
        yield from (symbol.name for symbol in symbols_of(value))
    elif isinstance(value, Name):
        yield value.name


@dataclass(frozen=True)
class HostProgram:
    """Steps in order. `inputs` are the names that the boxed argument list is unpacked to; `kernels` are distinct.

    The `prelude` makes numbers before the first step. `constants` are tensors of the graph, bound in the namespace of
    the host program. `input_buffers` has the layout of those inputs that are tensors.
    """

    name: str
    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    kernels: tuple[Kernel, ...]
    outputs: tuple[Any, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    input_buffers: Mapping[str, Buffer] = field(default_factory=dict)
    prelude: tuple[Compute, ...] = ()

    def peak_bytes(self) -> int:
        """The largest number of bytes alive at once, inputs included until they are freed.

        Workspace inside extern calls is not known and not counted; views count nothing. Sizes of run time are taken
        to be what they were when the graph was traced.
        """
        alive: dict[str, int] = {name: hint(b.nbytes) for name, b in self.input_buffers.items()}
        peak = current = sum(alive.values())
        for step in self.steps:
            match step:
                case Allocate():
                    alive[step.buffer.name] = hint(step.buffer.nbytes)
                    current += hint(step.buffer.nbytes)
                case Reuse():
                    alive[step.buffer.name] = alive.pop(step.source)
                case Place() | Extern(is_in_place=True):
                    pass
                case Extern() | GetItem():
                    size = 0 if step.aliases or step.layout is None else hint(step.layout.nbytes)
                    if isinstance(step, Extern):
                        size += sum(hint(buffer.nbytes) for buffer in step.unused)
                    alive[step.out] = size
                    current += size
                case Free():
                    current -= sum(alive.pop(name, 0) for name in step.names)
            peak = max(peak, current)
        return peak
