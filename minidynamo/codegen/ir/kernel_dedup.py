"""Owns the kernels of a graph that differ in names only: a model of six layers has most kernels six times.

Each distinct kernel is printed, built and loaded once; its launches pass their own buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from minidynamo.codegen.ir.expr import Const, Expr, IndexValue, Load, Ref, rewrite
from minidynamo.codegen.ir.index import Index
from minidynamo.codegen.ir.loops import Accumulate, Buffer, Kernel, Loop, Origins, Statement, Store


def representatives(kernels: Iterable[Kernel]) -> dict[str, Kernel]:
    """Maps the name of each kernel to the first kernel that does the same, which may be the kernel itself."""
    first: dict[Kernel, Kernel] = {}
    return {kernel.name: first.setdefault(_nameless(kernel), kernel) for kernel in kernels}


def distinct(first_of_kind: Mapping[str, Kernel]) -> list[Kernel]:
    """Returns the distinct kernels from the result of `representatives`."""
    return [kernel for name, kernel in first_of_kind.items() if kernel.name == name]


def _nameless(kernel: Kernel) -> Kernel:
    """Returns the kernel with names by position, which is equal for kernels that do the same with their arguments."""
    buffers = {buffer.name: f"b{n}" for n, buffer in enumerate(kernel.arguments)}
    values: dict[str, str] = {}

    def value_name(name: str) -> str:
        return values.setdefault(name, f"v{len(values)}")

    # A constant is spelled: as a float, -0.0 would equal 0.0.
    return renamed(kernel, "", buffers, value_name, spell=True)


def renamed(
    kernel: Kernel,
    name: str,
    buffers: Mapping[str, str],
    value_name: Callable[[str], str],
    origins: Callable[[Origins], Origins] = lambda old: old,
    *,
    spell: bool = False,
) -> Kernel:
    """Returns the kernel with other names of buffers and values, and other origins. With `spell` each constant becomes
    a name."""

    def replaced(e: Expr) -> Expr | None:
        match e:
            case Load():
                return Load(buffers[e.buffer], e.index, e.dtype, e.valid)
            case Ref():
                return Ref(value_name(e.name), e.dtype)
            case Const() if spell:
                return Ref(repr(e.value), e.dtype)
        return None

    def index(old: Index) -> Index:
        if old.is_linear():
            return old
        rewritten = rewrite(IndexValue(old, torch.int64), replaced)
        assert isinstance(rewritten, IndexValue)
        return rewritten.index

    def statement(s: Statement) -> Statement:
        value, made_by = rewrite(s.value, replaced), origins(s.origins)
        match s:
            case Store():
                return replace(s, buffer=buffers[s.buffer], index=index(s.index), value=value, origins=made_by)
            case Accumulate():
                position = None if s.position is None else index(s.position)
                return replace(s, name=value_name(s.name), value=value, position=position, origins=made_by)
        return replace(s, name=value_name(s.name), value=value, origins=made_by)

    def of_arguments(arguments: Sequence[Buffer]) -> tuple[Buffer, ...]:
        return tuple(replace(buffer, name=buffers[buffer.name]) for buffer in arguments)

    loops = tuple(Loop(loop.axes, tuple(map(statement, loop.body))) for loop in kernel.loops)
    reads, writes = of_arguments(kernel.reads), of_arguments(kernel.writes)
    return replace(kernel, name=name, reads=reads, writes=writes, loops=loops)
