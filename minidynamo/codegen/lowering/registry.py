"""Owns the table from ATen operations to lowerings, and the values that lowerings take and return: views of buffers,
described by coordinates.

A view never copies, it only changes the coordinates. Later stages decide which values exist in memory. The lowerings
are in the files next to this one; importing the package fills the table.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from minidynamo.codegen.ir.expr import Load
from minidynamo.codegen.ir.index import Index, Var, as_index, delinearize, flatten, row_major
from minidynamo.codegen.ir.loops import Buffer
from minidynamo.codegen.ir.size import Extent
from minidynamo.compat import OpOverload
from minidynamo.core.records import record

Coordinates = tuple[Index, ...]


def dimensions(shape: Sequence[Extent], prefix: str = "d") -> tuple[Var, ...]:
    """Returns a variable per dimension of `shape`."""
    return tuple(Var(f"{prefix}{k}", size) for k, size in enumerate(shape))


def broadcast_shape(*shapes: Sequence[Extent]) -> tuple[Extent, ...]:
    """Returns the common shape of broadcast tensors. Eager has checked the shapes, so two sizes other than 1 are
    equal."""
    result: list[Extent] = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for d, size in enumerate(shape, len(result) - len(shape)):
            if result[d] == 1 or (isinstance(size, int) and size != 1):
                result[d] = size
    return tuple(result)


@record(frozen=True)
class Value:
    """A tensor whose element at d0, d1, ... is `buffer[index]`."""

    #: The buffer with the elements.
    buffer: Buffer
    #: The sizes.
    shape: tuple[Extent, ...]
    #: The coordinates in `buffer`, as expressions in d0, d1, ...; one per dimension of `buffer`.
    index: Coordinates

    @classmethod
    def whole(cls, buffer: Buffer) -> Value:
        """Returns all of a buffer."""
        return cls(buffer, buffer.shape, tuple(as_index(d) for d in dimensions(buffer.shape)))

    @property
    def dtype(self) -> torch.dtype:
        """Returns the element type."""
        return self.buffer.dtype

    @property
    def is_whole(self) -> bool:
        """Returns whether this is all of its buffer, with the buffer's own coordinates."""
        return self == Value.whole(self.buffer)

    def coordinates(self, at: Sequence[Index]) -> Coordinates:
        """Returns the coordinates in the buffer of the element at `at`."""
        values = dict(zip(dimensions(self.shape), at))
        return tuple(i.substitute(values) for i in self.index)

    def load(self, at: Sequence[Index]) -> Load:
        """Returns the element at `at`."""
        return Load(self.buffer.name, self.coordinates(at), self.dtype)

    def broadcast_load(self, at: Sequence[Index]) -> Load:
        """Returns the element at `at` of a tensor that this tensor broadcasts to."""
        return self.load(self.broadcast_coordinates(at))

    def broadcast_coordinates(self, at: Sequence[Index]) -> list[Index]:
        """Returns the coordinates in this tensor of the element at `at` of a tensor that this tensor broadcasts to."""
        last = at[len(at) - len(self.shape) :]
        return [Index() if size == 1 else i for size, i in zip(self.shape, last)]

    def view(self, shape: Sequence[Extent], to_old: Callable[[Coordinates], Sequence[Index]]) -> Value:
        """Returns the value of `shape` whose element at `c` is this value's element at `to_old(c)`."""
        new = tuple(as_index(d) for d in dimensions(shape))
        return Value(self.buffer, tuple(shape), self.coordinates(tuple(to_old(new))))

    def reshape(self, shape: Sequence[Extent]) -> Value:
        """Returns the same elements in row-major order under another shape."""
        strides = row_major(shape)
        return self.view(shape, lambda new: delinearize(flatten(new, strides), self.shape))


Lowering = Callable[..., Value | tuple[Value | None, ...]]
F = TypeVar("F", bound=Lowering)

LOWERINGS: dict[str, Lowering] = {}
"""ATen name without overload -> `lowering(builder, *args, **kwargs)`, with Values in place of tensors."""

VIEWS: set[str] = set()
"""ATen names whose result shares memory with the argument in eager; a subset of LOWERINGS."""


def lowering(*names: str, view: bool = False) -> Callable[[F], F]:
    """Registers a function for ATen names."""

    def register(function: F) -> F:
        for name in names:
            add(name, function, view=view)
        return function

    return register


def add(name: str, function: Lowering, *, view: bool = False) -> None:
    """Registers `function` for an ATen name; a name is registered once."""
    if name in LOWERINGS:
        raise ValueError(f"aten.{name} has two lowerings")
    LOWERINGS[name] = function
    if view:
        VIEWS.add(name)


def find(target: Any) -> Lowering | None:
    """Returns the lowering of the target of an FX node, or None."""
    return LOWERINGS.get(base_name(target)) if isinstance(target, OpOverload) else None


def is_view(target: Any) -> bool:
    """Returns whether `target` is lowered as a change of coordinates."""
    return isinstance(target, OpOverload) and base_name(target) in VIEWS


def base_name(target: OpOverload) -> str:
    """Returns `"add"` for aten.add.Tensor, and the name with its namespace for other operators: `"prims.iota"`."""
    name = str(target.overloadpacket.__name__)
    return name if target.namespace == "aten" else f"{target.namespace}.{name}"


def lowered_ops() -> frozenset[OpOverload]:
    """Returns all overloads with a lowering, which need no decomposition."""
    packets = (operator.attrgetter(name if "." in name else f"aten.{name}")(torch.ops) for name in LOWERINGS)
    return frozenset(getattr(packet, overload) for packet in packets for overload in packet.overloads())
