"""Owns the loop IR: buffers, loop nests, extern calls, programs and kernels; and the number of chunks into which a
target splits a long fold.

Two levels share expressions. A `LoopProgram` has one `Loops` per buffer, which reads and writes by coordinates. A
`Kernel` is built by the scheduler from a group of `Loops`: statements in loops, which read and write by storage
offsets. No transformations here; `scheduling/schedule.py` cuts folds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

import torch

from minidynamo.codegen.ir.expr import Expr, IndexValue, Load, Scalar, rewrite
from minidynamo.codegen.ir.index import Index, Var, flatten, numbers_in_index
from minidynamo.codegen.ir.size import Extent, Number, Symbol, hint, numbers_of, product
from minidynamo.compat import OpOverload
from minidynamo.core.records import record
from minidynamo.errors import UserLocation

POSITIONAL = ("argmax", "argmin")
COMBINES = ("sum", "prod", "max", "min", "any", "all", *POSITIONAL)
"""The folds of a reduction.

max and min return NaN if an operand is NaN. argmax and argmin return the position of the first extreme value (a NaN
counts as extreme).
"""


@record(frozen=True)
class Buffer:
    """A strided tensor without storage offset (data pointers include the offset)."""

    #: The name of the value, unique in its program.
    name: str
    #: Sizes, in elements.
    shape: tuple[Extent, ...]
    #: Strides, in elements; as long as `shape`.
    stride: tuple[Extent, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def numel(self) -> Extent:
        """Returns the number of elements."""
        return product(self.shape)

    @property
    def span(self) -> Extent:
        """Returns the number of elements from the first to the last in memory, with gaps."""
        if 0 in self.shape:
            return 0
        total: Extent = 1
        for n, s in zip(self.shape, self.stride):
            total = total + (n - 1) * s
        return total

    @property
    def nbytes(self) -> Extent:
        """Returns the bytes from the first element to the last, with gaps."""
        return self.span * self.dtype.itemsize


@record(frozen=True)
class Origin:
    """An operation of the ATen graph."""

    #: The position of the operation in the graph.
    position: int
    #: The name of the operation without overload.
    op: str
    #: The user's line.
    where: UserLocation | None = None


Origins = tuple[Origin, ...]
"""The operations that a part of the IR computes, in graph order. Comparisons and hashes ignore origins: two parts are
equal if they compute the same."""


def merge(*origins: Iterable[Origin]) -> Origins:
    """Returns all origins in graph order, each once."""
    by_position = {origin.position: origin for each in origins for origin in each}
    return tuple(by_position[position] for position in sorted(by_position))


def comments(origins: Origins) -> tuple[str, ...]:
    """Returns the user's lines of `origins`, each once."""
    return tuple(dict.fromkeys(origin.where.comment() for origin in origins if origin.where is not None))


def folded_dtype(combine: str, dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of a finished fold of `dtype`."""
    return torch.int64 if combine in POSITIONAL else dtype


@record(frozen=True)
class Loops:
    """`out[index] = combine over reduced of body`, for all values of `axes`."""

    #: The buffer to store into.
    out: Buffer
    #: All loop variables, in the order of the tensor's dimensions.
    axes: tuple[Var, ...]
    #: The stored element: one coordinate per dimension of `out`.
    index: tuple[Index, ...]
    #: The value to store or to fold, in terms of `axes`.
    body: Expr
    #: The variables that `combine` folds; a subset of `axes`.
    reduced: tuple[Var, ...] = ()
    #: A name in COMBINES; None for a pointwise nest.
    combine: str | None = None
    #: The dtype of the fold; the result is cast to the dtype of `out` by the store.
    accumulate: torch.dtype | None = None
    #: For argmax and argmin: the number to return for the extreme value.
    position: Index | None = None
    #: The operations that the nest computes.
    origins: Origins = field(default=(), compare=False)

    @property
    def ranges(self) -> tuple[Var, ...]:
        """Returns the variables that are not folded."""
        return tuple(v for v in self.axes if v not in self.reduced)


@record(frozen=True)
class Name:
    """A reference to a value of the host program, inside the arguments of an Extern or Return."""

    name: str

    def __str__(self) -> str:
        return self.name


def names_in(value: object) -> Iterable[str]:
    """Yields the Names inside the arguments of an extern call or a return."""
    if isinstance(value, Name):
        yield value.name
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from names_in(item)


@record(frozen=True)
class Extern:
    """`out = op(*args, **kwargs)` with torch's own kernel.

    `GetItem` nodes read the items of a result that is not one tensor (a tuple, a list, a number, None).
    """

    #: The name of the result.
    out: str
    #: An operator of torch, or any function.
    op: Any
    #: Constants, sizes, Names, and tuples of them.
    args: tuple[Any, ...]
    #: (name, argument) pairs.
    kwargs: tuple[tuple[str, Any], ...] = ()
    #: The values whose storage the result may share (views).
    aliases: tuple[str, ...] = ()
    #: The values that the call writes.
    mutates: tuple[str, ...] = ()
    #: The layout of the result, if the result is one tensor.
    layout: Buffer | None = None
    #: The operations that the call computes.
    origins: Origins = field(default=(), compare=False)
    #: The operator that writes the result over the first argument instead; None if torch has no such operator.
    in_place: Any = None
    #: Tensors in the result that no `GetItem` reads.
    unused: tuple[Buffer, ...] = field(default=(), compare=False)
    #: The length of a result that is a list.
    count: int | None = None

    @property
    def is_view(self) -> bool:
        """Returns whether the call computes nothing: its result is a view of an argument. A function that is not an
        operator of torch may compute anything."""
        return bool(self.aliases) and not self.mutates and isinstance(self.op, OpOverload)

    @property
    def is_in_place(self) -> bool:
        """Returns whether the result is an argument that the call writes."""
        return self.out in self.mutates


@record(frozen=True)
class GetItem:
    """`out = source[index]`, an item of a tuple or list that an Extern returned."""

    #: The name of the item.
    out: str
    #: The name of the tuple or list.
    source: str
    #: The position of the item.
    index: int
    #: The values whose storage the item may share.
    aliases: tuple[str, ...] = ()
    #: The layout of the item, if it is a tensor.
    layout: Buffer | None = None
    origins: Origins = field(default=(), compare=False)


Node = Loops | Extern | GetItem


@record(frozen=True)
class Compute:
    """`out = op(*args)`, a number that the host program computes from inputs before its first step."""

    #: The name of the number.
    out: str
    #: A function; or a `torch.Tensor` method, with the Name of an input as the first argument.
    op: Any
    #: Numbers, sizes and Names.
    args: tuple[Any, ...]
    #: Whether the number is computed for the error that `op` may raise.
    raises: bool = False


@record(frozen=True)
class Write:
    """A write of new data to an input: the memory of the input may hold `value` from this write on."""

    #: The input.
    input: str
    #: The buffer with the data; its layout is the layout of the input.
    value: str
    #: The number of ATen calls before the write.
    calls: int


@record(frozen=True)
class LoopProgram:
    """A whole graph as loop nests and extern calls.

    A `Loops` whose `out` is an input stores into the caller's tensor (a copy_), once; later readers of the input read
    the new data.
    """

    #: The names of the inputs, in order.
    inputs: tuple[str, ...]
    #: The nodes in program order.
    nodes: tuple[Node, ...]
    #: Names and constants.
    outputs: tuple[Any, ...]
    #: Name -> layout, for all tensors with a known layout.
    buffers: Mapping[str, Buffer]
    #: Name -> tensor of the graph.
    constants: Mapping[str, Any] = field(default_factory=dict)
    #: The inputs that are Python numbers; known in all nodes.
    numbers: frozenset[str] = frozenset()
    #: The numbers that are computed from inputs; known in all nodes.
    prelude: tuple[Compute, ...] = ()
    #: The writes to inputs before the end of the program.
    writes: tuple[Write, ...] = ()
    #: The language of the kernels.
    target: str = "cpp"


def checks_kept(expr: Expr, buffers: Mapping[str, Buffer]) -> frozenset[Expr]:
    """Returns the checks of indices below `expr` that kernels execute.

    A kernel does not check an index in a dimension of stride 0: no address depends on the index.
    """

    def addressed(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        strides = buffers[e.buffer].stride
        index = tuple(Index() if stride == 0 else i for i, stride in zip(e.index, strides, strict=True))
        return dataclasses.replace(e, index=index)

    return rewrite(expr, addressed).checks


@record(frozen=True)
class Let:
    """Names a value in this iteration."""

    #: A new name, visible after the statement.
    name: str
    value: Expr
    #: Whether a later loop over the same axes of the same row reads the value, too.
    kept: bool = False
    origins: Origins = field(default=(), compare=False)


@record(frozen=True)
class Accumulate:
    """Folds `value` over the axes of the loop into `name`. Statements after the loop can read `name` (as a Ref)."""

    #: A new name, visible after the loop.
    name: str
    #: A name in COMBINES.
    combine: str
    #: The element to fold.
    value: Expr
    #: The dtype of the fold and of `value`. For argmax and argmin: the dtype of the comparison.
    dtype: torch.dtype
    #: For argmax and argmin: the number (int64) that `name` will hold.
    position: Index | None = None
    origins: Origins = field(default=(), compare=False)


@record(frozen=True)
class Store:
    """Writes `value`, which has the buffer's dtype, to the element of `buffer` at storage offset `index`."""

    buffer: str
    index: Index
    value: Expr
    origins: Origins = field(default=(), compare=False)


Statement = Let | Accumulate | Store


def indices_in(s: Statement) -> Iterator[Index]:
    """Yields the indices of the memory and the numbers that a statement of a kernel computes with."""
    if isinstance(s, Store):
        yield s.index
    elif isinstance(s, Accumulate) and s.position is not None:
        yield s.position
    for e in s.value.below:
        match e:
            case Load():
                yield from e.index
            case IndexValue():
                yield e.index


def numbers_in(s: Statement) -> Iterator[Number | Scalar]:
    """Yields the numbers of the host program that a statement computes with."""
    if isinstance(s, Store):
        yield from numbers_in_index(s.index)
    elif isinstance(s, Accumulate) and s.position is not None:
        yield from numbers_in_index(s.position)
    for e in s.value.below:
        match e:
            case Scalar():
                yield e
            case Load():
                for index in e.index:
                    yield from numbers_in_index(index)
            case IndexValue():
                yield from numbers_in_index(e.index)


def numbers_between(rows: Iterable[Var], loops: Iterable[Loop]) -> tuple[Number | Scalar, ...]:
    """Returns the numbers of the host program that the loops of a kernel need, each once."""
    numbers: dict[Number | Scalar, None] = {}
    for var in rows:
        numbers.update(dict.fromkeys(numbers_of(var.extent)))
    for loop in loops:
        for var in loop.axes:
            numbers.update(dict.fromkeys(numbers_of(var.extent)))
        for s in loop.body:
            numbers.update(dict.fromkeys(numbers_in(s)))
    return tuple(numbers)


@record(frozen=True)
class Loop:
    """Runs `body` for all values of `axes` (outermost first); without axes, once per row."""

    axes: tuple[Var, ...]
    body: tuple[Statement, ...]


@record(frozen=True)
class Kernel:
    """Runs `loops` in order, for each of `rows`. Rows are independent of each other."""

    #: The name of the function, unique in the graph.
    name: str
    #: The buffers that are only read; the first arguments of a launch.
    reads: tuple[Buffer, ...]
    #: The buffers that are written, and perhaps read too; the arguments after `reads`.
    writes: tuple[Buffer, ...]
    #: The row variables, outermost first.
    rows: tuple[Var, ...]
    #: The loops inside a row, in order.
    loops: tuple[Loop, ...]
    #: The variable along which accesses are contiguous: the innermost axis of the loops, or the innermost row. For a
    #: row (a column reduction), printers place the other loops around a loop over a block of the row.
    vector: Var | None
    device: torch.device
    #: The numbers in sizes, indices and values; the arguments after the buffers.
    numbers: tuple[Number | Scalar, ...] = ()

    @property
    def parameters(self) -> dict[Number | Scalar, str]:
        """Returns the names of the numbers inside the kernel."""
        names = {}
        for k, number in enumerate(self.numbers):
            prefix = "f_" if isinstance(number, Scalar) else "n_"
            names[number] = f"{prefix}{number.name}" if isinstance(number, (Symbol, Scalar)) else f"n{k}"
        return names

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        """Returns the buffers in the order in which a launch passes them."""
        return self.reads + self.writes

    @property
    def work(self) -> Extent:
        """Returns the number of innermost iterations of a loop with axes, or of the rows."""
        columns = next((loop.axes for loop in self.loops if loop.axes), ())
        return product(v.extent for v in (*self.rows, *columns))

    @property
    def origins(self) -> Origins:
        """Returns the operations that the kernel computes."""
        return merge(*(s.origins for s in self.statements()))

    def statements(self) -> Iterator[Statement]:
        """Yields all statements in program order."""
        return (s for loop in self.loops for s in loop.body)


@record(frozen=True)
class Parallelism:
    """The parallelism of a target's processors.

    A fold is cut if at most `few` programs have at least `large` elements to read.
    """

    #: The most programs for which a fold is cut.
    few: int
    #: The fewest elements for which a fold is cut.
    large: int
    #: The number of chunks to cut a fold into, roughly; 0: use `programs`.
    chunks: int = 0
    #: The number of programs to aim for, all chunks together.
    programs: int = 0
    #: The fewest elements per program.
    shortest: int = 1
    #: The results per program, if the results are adjacent in memory and the fold runs across them.
    neighbours: int = 1


PARALLELISM = {
    # A few threads; each runs its programs in sequence.
    "cpp": Parallelism(few=63, large=1 << 16, chunks=64),
    # About a hundred processors; each needs several concurrent programs to read at full bandwidth.
    "triton": Parallelism(few=255, large=1 << 18, programs=1024, shortest=2048, neighbours=64),
}

LONG = 256
"""The shortest fold that is worth a second kernel."""


def chunks_wanted(node: Loops, buffers: Mapping[str, Buffer], target: str) -> int:
    """Returns the number of chunks to cut a fold into, roughly; 1 leaves the fold whole."""
    if node.combine is None or node.combine in POSITIONAL or target not in PARALLELISM:
        return 1
    machine = PARALLELISM[target]
    results = hint(product(v.extent for v in node.ranges))
    length = hint(product(v.extent for v in node.reduced))
    results_per_program = 1 if _innermost(node, buffers) in node.reduced else machine.neighbours
    programs = -(-results // results_per_program)
    if not 0 < programs <= machine.few or length < LONG or results * length < machine.large:
        return 1
    return machine.chunks or min(
        machine.programs // programs, length * min(results_per_program, results) // machine.shortest
    )


def _innermost(node: Loops, buffers: Mapping[str, Buffer]) -> Var:
    """Returns the axis with the smallest stride in the widest load of a fold."""
    offsets = [flatten(load.index, buffers[load.buffer].stride) for load in node.body.loads]
    widest = max(offsets, key=lambda offset: len(offset.variables()), default=None)
    steps = {} if widest is None else {v: abs(hint(widest.coefficient(v))) for v in node.axes}
    reached = [v for v in node.axes if steps.get(v)]
    return min(reversed(reached), key=lambda v: steps[v], default=node.axes[-1])
