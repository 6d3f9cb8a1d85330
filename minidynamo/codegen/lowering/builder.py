"""Owns the growing loop program: what a lowering calls to add loop nests.

It knows expressions and buffers, no ATen operation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from minidynamo.codegen.ir.expr import rename
from minidynamo.codegen.ir.index import Index, Var, as_index, flatten, row_major
from minidynamo.codegen.ir.loops import POSITIONAL, Buffer, Compute, Loops, Node, Origins
from minidynamo.codegen.ir.parallelism import chunks_wanted
from minidynamo.codegen.ir.size import Extent
from minidynamo.codegen.lowering.formula import NotLowered, V, const, identity, opmath
from minidynamo.codegen.lowering.values import Coordinates, Value, broadcast_shape, dimensions

Formula = Callable[..., V]


class Builder:
    """Collects the nodes of a LoopProgram. `prefix` starts the names of new buffers, `device` is where they live."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.buffers: dict[str, Buffer] = {}
        self.prefix = ""
        self.device = torch.device("cpu")
        # Sizes, strides and dtype of the results of the ATen call being lowered, as eager would have them.
        self.results: tuple[Buffer | None, ...] = ()
        # And of the tensors that it is given, in the order of the node's inputs.
        self.given: tuple[Buffer | None, ...] = ()
        # The call being lowered.
        self.origins: Origins = ()
        # The operation of torch that it is a part of, if that was taken apart.
        self.part_of: str | None = None
        # The language of the kernels. Those in C++ can fold MOMENTS.
        self.target = "cpp"
        # Calls whose folds must not be cut into chunks: where they had to be, they are torch's own.
        self.uncut: Collection[str] = ()
        # What is asked of numbers before anything else happens.
        self.prelude: list[Compute] = []

    @property
    def out(self) -> Buffer:
        """The layout of the result of the call being lowered (the first one, if there are several)."""
        first = next((result for result in self.results if result is not None), None)
        if first is None:
            raise ValueError("this call has no tensor result")
        return first

    def require(self, op: Callable[..., None], *args: Any) -> None:
        """Let the host program call what may raise an error, before anything else happens."""
        if not any((asked.op, asked.args) == (op, args) for asked in self.prelude):
            self.prelude.append(Compute(self.fresh(f"asked_{len(self.prelude)}"), op, args, raises=True))

    def fresh(self, hint: str) -> str:
        """A name that no buffer has, starting with the name of the call being lowered."""
        name, count = f"{self.prefix}_{hint}", 1
        while name in self.buffers:
            count += 1
            name = f"{self.prefix}_{hint}_{count}"
        return name

    def compute(
        self, shape: Sequence[Extent], body: Callable[[Coordinates], V], dtype: torch.dtype | None = None
    ) -> Value:
        """A new tensor whose element at `c` is `body(c)`, cast to `dtype`."""
        axes = dimensions(shape, "i")
        at = tuple(as_index(v) for v in axes)
        value = body(at)
        value = value if dtype is None else value.to(dtype)
        return self._add(Loops(self._buffer("map", shape, value.dtype), axes, at, value.expr))

    def map(self, formula: Formula, *values: Value, dtype: torch.dtype | None = None) -> Value:
        """`formula` applied elementwise to broadcast values. Half values arrive as float32; the result is `dtype`."""
        shape = broadcast_shape(*(v.shape for v in values))
        return self.compute(shape, lambda at: formula(*(self.element(v, at) for v in values)), dtype)

    def element(self, value: Value, at: Sequence[Index]) -> V:
        """The element at `at` of a tensor that `value` broadcasts to, in the dtype that is computed with."""
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
        """Fold `formula(*values)` over `dims` of the broadcast shape. A fold of one element is the
        element, a fold of nothing its identity."""
        shape = broadcast_shape(*(v.shape for v in values))
        axes = dimensions(shape, "i")
        at = tuple(as_index(v) for v in axes)
        body = formula(*(self.element(v, at) for v in values))
        folded = {d % len(shape) for d in dims} if shape else set()
        size = [1 if d in folded else n for d, n in enumerate(shape) if keepdim or d not in folded]
        index = [Index() if d in folded else at[d] for d in range(len(shape)) if keepdim or d not in folded]
        positional = combine in POSITIONAL
        several = {d for d in folded if shape[d] != 1}
        if 0 in shape or (positional and not several):  # folds of nothing, or none at all
            nothing = const(0, torch.int64) if positional else V(identity(combine, body.dtype))
            return self.compute(size, lambda _: nothing, dtype)
        if not several:
            kept = [d for d in range(len(shape)) if keepdim or d not in folded]

            def single(new: Coordinates) -> V:
                place = {d: i for d, i in zip(kept, new) if d not in folded}
                return formula(*(self.element(v, [place.get(d, Index()) for d in range(len(shape))]) for v in values))

            return self.compute(size, single, dtype)
        folded, position = several, None
        if positional:
            inner = [d for d in range(len(shape)) if d in folded]
            position = flatten([at[d] for d in inner], row_major([shape[d] for d in inner]))
        made = dtype or (torch.int64 if positional else body.dtype)
        reduced: tuple[Var, ...] = tuple(v for d, v in enumerate(axes) if d in folded)
        out = self._buffer(combine, size, made)
        node = Loops(out, axes, tuple(index), body.expr, reduced, combine, body.dtype, position)
        if self.prefix in self.uncut and chunks_wanted(node, self.buffers, self.target) > 1:
            raise NotLowered
        return self._add(node)

    def adopt(self, value: Value, layout: Buffer, start: int) -> Value:
        """Give a buffer made since `start` the name, sizes and strides of `layout`, everywhere it is used."""
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
