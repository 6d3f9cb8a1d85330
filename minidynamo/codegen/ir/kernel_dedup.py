"""Owns which kernels of a graph are the same but for names: a model of six layers has most of its kernels six times.

Each is printed, built and loaded once; launches of the others start it with their own buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from minidynamo.codegen.ir.expr import Const, Expr, IndexValue, Load, Ref, rewrite
from minidynamo.codegen.ir.index import Index
from minidynamo.codegen.ir.loops import Accumulate, Buffer, Kernel, Loop, Statement, Store


def representatives(kernels: Iterable[Kernel]) -> dict[str, Kernel]:
    """The name of each kernel, with the first one that does the same: itself, if there is none before it."""
    first: dict[Kernel, Kernel] = {}
    return {kernel.name: first.setdefault(_nameless(kernel), kernel) for kernel in kernels}


def distinct(found: Mapping[str, Kernel]) -> list[Kernel]:
    """Of what `representatives` has found, the kernels that stand for all."""
    return [kernel for name, kernel in found.items() if kernel.name == name]


def _nameless(kernel: Kernel) -> Kernel:
    """The kernel with names by position: equal for kernels that do the same with the buffers that they are given."""
    buffers = {buffer.name: f"b{n}" for n, buffer in enumerate(kernel.arguments)}
    values: dict[str, str] = {}

    def value_name(name: str) -> str:
        return values.setdefault(name, f"v{len(values)}")

    def renamed(e: Expr) -> Expr | None:
        match e:
            case Load():
                return replace(e, buffer=buffers[e.buffer])
            case Ref():
                return replace(e, name=value_name(e.name))
            case Const():
                return Ref(repr(e.value), e.dtype)  # as numbers, zeros of both signs would be equal
        return None

    def index(old: Index) -> Index:
        made = rewrite(IndexValue(old, torch.int64), renamed)
        assert isinstance(made, IndexValue)
        return made.index

    def statement(s: Statement) -> Statement:
        value = rewrite(s.value, renamed)
        match s:
            case Store():
                return replace(s, buffer=buffers[s.buffer], index=index(s.index), value=value)
            case Accumulate():
                position = None if s.position is None else index(s.position)
                return replace(s, name=value_name(s.name), value=value, position=position)
        return replace(s, name=value_name(s.name), value=value)

    def of_arguments(arguments: Sequence[Buffer]) -> tuple[Buffer, ...]:
        return tuple(replace(buffer, name=buffers[buffer.name]) for buffer in arguments)

    loops = tuple(Loop(loop.axes, tuple(map(statement, loop.body))) for loop in kernel.loops)
    reads, writes = of_arguments(kernel.reads), of_arguments(kernel.writes)
    return replace(kernel, name="", reads=reads, writes=writes, loops=loops)
