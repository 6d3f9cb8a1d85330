"""Owns the search for kernels of a graph that differ only in names: a model of six layers has most kernels six times.

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
    """Maps the name of each kernel to its representative: the first kernel that differs only in names."""
    first: dict[Kernel, Kernel] = {}
    return {kernel.name: first.setdefault(_nameless(kernel), kernel) for kernel in kernels}


def distinct(representative_of: Mapping[str, Kernel]) -> list[Kernel]:
    """Returns the distinct kernels from the result of `representatives`."""
    return [kernel for name, kernel in representative_of.items() if kernel.name == name]


def _nameless(kernel: Kernel) -> Kernel:
    """Returns the kernel with names by position: the result is equal for kernels that differ only in names."""
    buffers = {buffer.name: f"b{n}" for n, buffer in enumerate(kernel.arguments)}
    values: dict[str, str] = {}

    def value_name(name: str) -> str:
        return values.setdefault(name, f"v{len(values)}")

    # A constant becomes a name: as floats, -0.0 and 0.0 are equal.
    return renamed(kernel, "", buffers, value_name, name_constants=True)


def renamed(
    kernel: Kernel,
    name: str,
    buffers: Mapping[str, str],
    value_name: Callable[[str], str],
    origins: Callable[[Origins], Origins] = lambda old: old,
    *,
    name_constants: bool = False,
) -> Kernel:
    """Returns the kernel with other names of buffers and values, and other origins. With `name_constants` the
    names of constants are their texts."""

    def replaced(e: Expr) -> Expr | None:
        match e:
            case Load():
                return Load(buffers[e.buffer], e.index, e.dtype, e.valid)
            case Ref():
                return Ref(value_name(e.name), e.dtype)
            case Const() if name_constants:
                return Ref(repr(e.value), e.dtype)
        return None

    def index(old: Index) -> Index:
        if old.is_linear():
            return old
        rewritten = rewrite(IndexValue(old, torch.int64), replaced)
        assert isinstance(rewritten, IndexValue)
        return rewritten.index

    def statement(s: Statement) -> Statement:
        value, new_origins = rewrite(s.value, replaced), origins(s.origins)
        match s:
            case Store():
                return replace(s, buffer=buffers[s.buffer], index=index(s.index), value=value, origins=new_origins)
            case Accumulate():
                position = None if s.position is None else index(s.position)
                return replace(s, name=value_name(s.name), value=value, position=position, origins=new_origins)
        return replace(s, name=value_name(s.name), value=value, origins=new_origins)

    def renamed_arguments(arguments: Sequence[Buffer]) -> tuple[Buffer, ...]:
        return tuple(replace(buffer, name=buffers[buffer.name]) for buffer in arguments)

    loops = tuple(Loop(loop.axes, tuple(map(statement, loop.body))) for loop in kernel.loops)
    reads, writes = renamed_arguments(kernel.reads), renamed_arguments(kernel.writes)
    return replace(kernel, name=name, reads=reads, writes=writes, loops=loops)
