"""Owns the loop IR: buffers, loop nests, extern calls, the program made of them, and kernels.

Two levels share expressions. A `LoopProgram` has one `Loops` per buffer, reading and writing by coordinates. A
`Kernel` is what the scheduler makes of a group of them: statements in loops, reading and writing by storage offsets.
Nothing here transforms anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from minidynamo.codegen.ir.expr import Expr, IndexValue, Load, Scalar, checks, rewrite, walk
from minidynamo.codegen.ir.index import Index, Var, numbers_below
from minidynamo.codegen.ir.size import Extent, Number, Symbol, numbers_of, product
from minidynamo.compat import OpOverload
from minidynamo.errors import UserLocation

POSITIONAL = ("argmax", "argmin")
MOMENTS = ("mean", "squares")
COMBINES = ("sum", "prod", "max", "min", "any", "all", *POSITIONAL, *MOMENTS)
"""How a reduction folds values. max and min return NaN if one is NaN; argmax and argmin give the position of the
first extreme value (a NaN counts as extreme). MOMENTS, the mean and the sum of squared deviations from it, are folded
in the steps of torch's kernels for rows on a CPU, which are others for half types: they have these as their dtype, and
a float32 as their result."""


@dataclass(frozen=True)
class Buffer:
    """A strided tensor: sizes and strides in elements, without storage offset (data pointers include it)."""

    name: str
    shape: tuple[Extent, ...]
    stride: tuple[Extent, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def numel(self) -> Extent:
        """The number of elements."""
        return product(self.shape)

    @property
    def span(self) -> Extent:
        """The elements and the gaps between them."""
        if 0 in self.shape:
            return 0
        total: Extent = 1
        for n, s in zip(self.shape, self.stride):
            total = total + (n - 1) * s
        return total

    @property
    def nbytes(self) -> Extent:
        """The bytes that the elements and the gaps between them span."""
        return self.span * self.dtype.itemsize


@dataclass(frozen=True)
class Origin:
    """One operation of the ATen graph: its position there, its name without overload, and the user's line."""

    position: int
    op: str
    where: UserLocation | None = None


Origins = tuple[Origin, ...]
"""What a part of the IR was made from, in graph order. Two parts that compute the same are equal whatever they were
made from, so origins take no part in comparisons and hashes."""


def merge(*origins: Iterable[Origin]) -> Origins:
    """All of them in graph order, each once."""
    found = {origin.position: origin for each in origins for origin in each}
    return tuple(found[position] for position in sorted(found))


def comments(origins: Origins) -> tuple[str, ...]:
    """The user's lines that `origins` name, each once."""
    return tuple(dict.fromkeys(origin.where.comment() for origin in origins if origin.where is not None))


def folded_dtype(combine: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a finished fold of `dtype`."""
    if combine in POSITIONAL:
        return torch.int64
    return torch.float32 if combine in MOMENTS and dtype.itemsize < 4 else dtype


@dataclass(frozen=True)
class Loops:
    """`out[index] = combine over reduced of body`, for all values of `axes`.

    `axes` are all loop variables in the order of the tensor's dimensions; `reduced` are those among them that are
    folded by `combine`. For argmax and argmin `position` is the number that is kept for the extreme value. `accumulate`
    is the dtype of the fold; the result is cast to the dtype of `out` when it is stored.
    """

    out: Buffer
    axes: tuple[Var, ...]
    index: tuple[Index, ...]
    body: Expr
    reduced: tuple[Var, ...] = ()
    combine: str | None = None
    accumulate: torch.dtype | None = None
    position: Index | None = None
    origins: Origins = field(default=(), compare=False)

    @property
    def ranges(self) -> tuple[Var, ...]:
        """The variables that are not folded."""
        return tuple(v for v in self.axes if v not in self.reduced)


@dataclass(frozen=True)
class Name:
    """A reference to a value of the host program, inside the arguments of an Extern or Return."""

    name: str

    def __str__(self) -> str:
        return self.name


def names_in(value: object) -> Iterable[str]:
    """Every Name inside the arguments of an extern call or a return."""
    if isinstance(value, Name):
        yield value.name
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from names_in(item)


@dataclass(frozen=True)
class Extern:
    """`out = op(*args, **kwargs)` with torch's own kernel. Arguments are constants, sizes, Names, and tuples of them.

    `aliases` names the values whose storage the result may share (views), `mutates` those it writes. A result that is
    not one tensor (a tuple, a list, a number, None) is taken apart by `GetItem`; `unused` are those in it that nobody
    takes. `layout` is the one tensor that comes out, if it is one; `count` the length of a list.
    """

    out: str
    op: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    aliases: tuple[str, ...] = ()
    mutates: tuple[str, ...] = ()
    layout: Buffer | None = None
    origins: Origins = field(default=(), compare=False)
    in_place: Any = None
    unused: tuple[Buffer, ...] = field(default=(), compare=False)
    count: int | None = None

    @property
    def is_view(self) -> bool:
        """Whether the call computes nothing: its result is a window on the storage of an argument. What is no operator
        of torch may compute anything."""
        return bool(self.aliases) and not self.mutates and isinstance(self.op, OpOverload)

    @property
    def is_in_place(self) -> bool:
        """Whether the result is an argument, written to."""
        return self.out in self.mutates


@dataclass(frozen=True)
class GetItem:
    """`out = source[index]` of a tuple or list that an Extern returned."""

    out: str
    source: str
    index: int
    aliases: tuple[str, ...] = ()
    layout: Buffer | None = None
    origins: Origins = field(default=(), compare=False)


Node = Loops | Extern | GetItem


@dataclass(frozen=True)
class Compute:
    """`out = op(*args)`, a number that the host program makes of inputs before anything else happens.

    With a `torch.Tensor` method as `op`, the first argument is the Name of an input. `raises`: it is there for the
    error that it may raise.
    """

    out: str
    op: Any
    args: tuple[Any, ...]
    raises: bool = False


@dataclass(frozen=True)
class Write:
    """The program gives the input `place` the data of the buffer `value`, which has its layout, behind `calls` calls of
    ATen. The memory of the input may hold that value from there on."""

    place: str
    value: str
    calls: int


@dataclass(frozen=True)
class LoopProgram:
    """A whole graph. `buffers` has every tensor whose layout is known; `outputs` are Names and constants.

    Nodes are in program order. A `Loops` whose `out` is an input stores into the caller's tensor (a copy_), once; what
    reads the input behind it reads the new data.
    `constants` are tensors that belong to the graph. `numbers` are those inputs that are Python numbers, `prelude` the
    numbers made of inputs; both are known everywhere. `writes` are those to inputs that the program makes on the way.
    `target` is the language of its kernels.
    """

    inputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Any, ...]
    buffers: Mapping[str, Buffer]
    constants: Mapping[str, Any] = field(default_factory=dict)
    numbers: frozenset[str] = frozenset()
    prelude: tuple[Compute, ...] = ()
    writes: tuple[Write, ...] = ()
    target: str = "cpp"


def checks_kept(expr: Expr, buffers: Mapping[str, Buffer]) -> frozenset[Expr]:
    """Every check of an index below `expr` that is made: no address hangs on the index of a dimension in which a
    buffer repeats its elements."""

    def addressed(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        strides = buffers[e.buffer].stride
        index = tuple(Index() if stride == 0 else i for i, stride in zip(e.index, strides, strict=True))
        return dataclasses.replace(e, index=index)

    return checks(rewrite(expr, addressed))


@dataclass(frozen=True)
class Let:
    """Name a value in this iteration. `kept`: a later loop over the same axes of the same row reads it too."""

    name: str
    value: Expr
    kept: bool = False
    origins: Origins = field(default=(), compare=False)


@dataclass(frozen=True)
class Accumulate:
    """Fold `value` over the axes of the loop into `name`, which is readable (as a Ref) behind the loop.

    `dtype` is the dtype of the fold and of `value`. For argmax and argmin `position` is what `name` will hold (int64),
    and `dtype` is the dtype that is compared.
    """

    name: str
    combine: str
    value: Expr
    dtype: torch.dtype
    position: Index | None = None
    origins: Origins = field(default=(), compare=False)


@dataclass(frozen=True)
class Store:
    """Write `value`, which has the buffer's dtype, to the element of `buffer` at storage offset `index`."""

    buffer: str
    index: Index
    value: Expr
    origins: Origins = field(default=(), compare=False)


Statement = Let | Accumulate | Store


def numbers_in(s: Statement) -> Iterator[Number | Scalar]:
    """Every number of the host program that a statement computes with."""
    if isinstance(s, Store):
        yield from numbers_below(s.index)
    elif isinstance(s, Accumulate) and s.position is not None:
        yield from numbers_below(s.position)
    for e in walk(s.value):
        match e:
            case Scalar():
                yield e
            case Load():
                for index in e.index:
                    yield from numbers_below(index)
            case IndexValue():
                yield from numbers_below(e.index)


def numbers_between(rows: Iterable[Var], loops: Iterable[Loop]) -> tuple[Number | Scalar, ...]:
    """Every number of the host program that the loops of a kernel need, each once."""
    found: dict[Number | Scalar, None] = {}
    for var in rows:
        found.update(dict.fromkeys(numbers_of(var.extent)))
    for loop in loops:
        for var in loop.axes:
            found.update(dict.fromkeys(numbers_of(var.extent)))
        for s in loop.body:
            found.update(dict.fromkeys(numbers_in(s)))
    return tuple(found)


@dataclass(frozen=True)
class Loop:
    """Run `body` for all values of `axes` (outermost first); no axes: once per row."""

    axes: tuple[Var, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Kernel:
    """For all `rows` (independent of each other, outermost first): run `loops` one after the other.

    Arguments are `reads` then `writes`; a buffer that is read and written stands in `writes` only. `vector` is the
    variable whose neighbours are neighbours in memory: the innermost axis of the loops, or the innermost row. In the
    latter case loops over other axes are best put outside of a block of it (a column reduction). `numbers` are what
    sizes, indices and values are computed of at run time; a launch passes them behind the buffers.
    """

    name: str
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    rows: tuple[Var, ...]
    loops: tuple[Loop, ...]
    vector: Var | None
    device: torch.device
    numbers: tuple[Number | Scalar, ...] = ()

    @property
    def parameters(self) -> dict[Number | Scalar, str]:
        """What the numbers are called inside the kernel."""
        names = {}
        for k, number in enumerate(self.numbers):
            prefix = "f_" if isinstance(number, Scalar) else "n_"
            names[number] = f"{prefix}{number.name}" if isinstance(number, (Symbol, Scalar)) else f"n{k}"
        return names

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        """The buffers in the order in which a launch passes them."""
        return self.reads + self.writes

    @property
    def work(self) -> Extent:
        """The number of innermost iterations of a loop with axes, or of the rows."""
        columns = next((loop.axes for loop in self.loops if loop.axes), ())
        return product(v.extent for v in (*self.rows, *columns))

    @property
    def origins(self) -> Origins:
        """Everything that the kernel computes."""
        return merge(*(s.origins for s in self.statements()))

    def statements(self) -> Iterator[Statement]:
        """Every statement in program order."""
        return (s for loop in self.loops for s in loop.body)
