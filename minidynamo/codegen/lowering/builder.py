"""Owns the loop program under construction: the functions with which lowerings add loop nests.

Only expressions and buffers here, no ATen operations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from minidynamo.codegen.ir.expr import rename
from minidynamo.codegen.ir.index import Index, Var, as_index, flatten, row_major
from minidynamo.codegen.ir.loops import POSITIONAL, Buffer, Compute, Loops, Node, Origins, chunks_wanted
from minidynamo.codegen.ir.size import Extent
from minidynamo.codegen.lowering.formula import NotLowered, V, const, identity, opmath
from minidynamo.codegen.lowering.registry import Coordinates, Value, broadcast_shape, dimensions

Formula = Callable[..., V]


class Builder:
    """Collects the nodes of a LoopProgram."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.buffers: dict[str, Buffer] = {}
        # The start of the names of new buffers.
        self.prefix = ""
        # The device of new buffers.
        self.device = torch.device("cpu")
        # Layouts of the results of the ATen call being lowered, as in eager.
        self.results: tuple[Buffer | None, ...] = ()
        # The call being lowered.
        self.origins: Origins = ()
        # The operation of torch whose decomposition the call is part of, if any.
        self.decomposed_from: str | None = None
        # The language of the kernels.
        self.target = "cpp"
        # Calls whose folds must not be cut into chunks: if a fold needs chunks, the call becomes an extern call.
        self.uncut: Collection[str] = ()
        # Checks of numbers that run before the first step of the program.
        self.prelude: list[Compute] = []

    @property
    def out(self) -> Buffer:
        """Returns the layout of the result of the call being lowered, or of its first tensor result."""
        first = next((result for result in self.results if result is not None), None)
        if first is None:
            raise ValueError("this call has no tensor result")
        return first

    def require(self, op: Callable[..., None], *args: Any) -> None:
        """Makes the host program call `op(*args)`, which may raise, before its first step."""
        if not any((step.op, step.args) == (op, args) for step in self.prelude):
            self.prelude.append(Compute(self.fresh(f"check_{len(self.prelude)}"), op, args, raises=True))

    def fresh(self, hint: str) -> str:
        """Returns a new buffer name that starts with the name of the call being lowered."""
        name, count = f"{self.prefix}_{hint}", 1
        while name in self.buffers:
            count += 1
            name = f"{self.prefix}_{hint}_{count}"
        return name

    def compute(
        self, shape: Sequence[Extent], body: Callable[[Coordinates], V], dtype: torch.dtype | None = None
    ) -> Value:
        """Adds a new tensor whose element at `c` is `body(c)`, cast to `dtype`."""
        axes = dimensions(shape, "i")
        at = tuple(as_index(v) for v in axes)
        value = body(at)
        value = value if dtype is None else value.to(dtype)
        return self._add(Loops(self._buffer("map", shape, value.dtype), axes, at, value.expr))

    def map(self, formula: Formula, *values: Value, dtype: torch.dtype | None = None) -> Value:
        """Applies `formula` elementwise to broadcast values. The formula gets half values as float32; the result has
        `dtype`."""
        shape = broadcast_shape(*(v.shape for v in values))
        return self.compute(shape, lambda at: formula(*(self.element(v, at) for v in values)), dtype)

    def element(self, value: Value, at: Sequence[Index]) -> V:
        """Returns the element at `at` of a tensor that `value` broadcasts to, in the dtype of the computation."""
        return V(value.broadcast_load(at)).to(opmath(value.dtype))

    def reduce(
        self,
        combine: str,
        formula: Formula,
        *values: Value,
        dims: Sequence[int],
        keepdim: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Value:
        """Folds `formula(*values)` over `dims` of the broadcast shape. A fold of a single element is the element, a
        fold of no elements is the identity."""
        shape = broadcast_shape(*(v.shape for v in values))
        axes = dimensions(shape, "i")
        at = tuple(as_index(v) for v in axes)
        body = formula(*(self.element(v, at) for v in values))
        folded = {d % len(shape) for d in dims} if shape else set()
        size = [1 if d in folded else n for d, n in enumerate(shape) if keepdim or d not in folded]
        index = [Index() if d in folded else at[d] for d in range(len(shape)) if keepdim or d not in folded]
        positional = combine in POSITIONAL
        long_dims = {d for d in folded if shape[d] != 1}
        if 0 in shape or (positional and not long_dims):  # folds of no elements, or an empty result
            empty_fold = const(0, torch.int64) if positional else V(identity(combine, body.dtype))
            return self.compute(size, lambda _: empty_fold, dtype)
        if not long_dims:
            kept = [d for d in range(len(shape)) if keepdim or d not in folded]

            def element_at(coordinates: Coordinates) -> V:
                coordinate = {d: i for d, i in zip(kept, coordinates) if d not in folded}
                return formula(
                    *(self.element(v, [coordinate.get(d, Index()) for d in range(len(shape))]) for v in values)
                )

            return self.compute(size, element_at, dtype)
        folded, position = long_dims, None
        if positional:
            inner = [d for d in range(len(shape)) if d in folded]
            position = flatten([at[d] for d in inner], row_major([shape[d] for d in inner]))
        result_dtype = dtype or (torch.int64 if positional else body.dtype)
        reduced: tuple[Var, ...] = tuple(v for d, v in enumerate(axes) if d in folded)
        out = self._buffer(combine, size, result_dtype)
        node = Loops(out, axes, tuple(index), body.expr, reduced, combine, body.dtype, position)
        if self.prefix in self.uncut and chunks_wanted(node, self.buffers, self.target) > 1:
            raise NotLowered
        return self._add(node)

    def adopt(self, value: Value, layout: Buffer, start: int) -> Value:
        """Replaces the buffer of `value`, which was added since node `start`, by `layout` in all its uses."""
        old = value.buffer.name
        for k in range(start, len(self.nodes)):
            node = self.nodes[k]
            if isinstance(node, Loops):
                out = layout if node.out.name == old else node.out
                self.nodes[k] = dataclasses.replace(node, out=out, body=rename(node.body, old, layout.name))
        del self.buffers[old]
        self.buffers[layout.name] = layout
        return Value.whole(layout)

    def _buffer(self, hint: str, shape: Sequence[Extent], dtype: torch.dtype) -> Buffer:
        return Buffer(self.fresh(hint), tuple(shape), row_major(shape), dtype, self.device)

    def _add(self, node: Loops) -> Value:
        self.nodes.append(dataclasses.replace(node, origins=self.origins))
        self.buffers[node.out.name] = node.out
        return Value.whole(node.out)
