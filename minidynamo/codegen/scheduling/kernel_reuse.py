"""Owns the reuse of built kernels: of several groups that differ only in names, the first is built, and its kernel is
renamed for the others.

A model of six layers has most groups six times, and each attempt to lower a peak has most groups of the attempt before.
`kernels.py` builds kernels.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace

from minidynamo.codegen.ir.expr import Cast, Const, Expr, IndexValue, Load, Op
from minidynamo.codegen.ir.kernel_dedup import renamed
from minidynamo.codegen.ir.loops import Buffer, Kernel
from minidynamo.codegen.ir.verify import verify_kernel
from minidynamo.codegen.scheduling.fuse import Group
from minidynamo.codegen.scheduling.kernels import build_kernel

_DERIVED = re.compile(r"(.+)(_at\d*|_fold)")
"""The names of values inside a kernel that are derived from the name of a buffer."""


class Kernels:
    """Builds the kernels of one program, and of changed schedules of the program."""

    def __init__(self, *, verify: bool) -> None:
        self.verify = verify
        # Key of a group -> the first group with this key, and its kernel.
        self.built: dict[Hashable, tuple[Group, Kernel]] = {}

    def build(
        self,
        group: Group,
        name: str,
        buffers: Mapping[str, Buffer],
        needed: frozenset[str],
        inputs: frozenset[str],
        *,
        reads_back: bool,
    ) -> Kernel:
        """Returns the kernel of a group; the arguments are those of `build_kernel`."""
        key = _key(group, buffers, needed, inputs, reads_back)
        found = self.built.get(key)
        kernel = None if found is None else _as_kernel_of(group, name, buffers, *found)
        if kernel is None:
            kernel = build_kernel(group, name, buffers, needed, inputs, reads_back=reads_back)
            self.built.setdefault(key, (group, kernel))
            if self.verify:
                verify_kernel(kernel)
        return kernel


def _names(group: Group) -> dict[str, int]:
    """Returns the buffers of a group, each with its position in the order of appearance."""
    names = dict.fromkeys(name for n in group.nodes for name in (n.out.name, *(load.buffer for load in n.body.loads)))
    return {name: position for position, name in enumerate(names)}


def _key(
    group: Group,
    buffers: Mapping[str, Buffer],
    needed: Collection[str],
    inputs: Collection[str],
    reads_back: bool,
) -> Hashable:
    """Returns a value that is equal for groups with the same kernel up to names."""
    names = _names(group)

    def properties(e: Expr) -> Hashable:
        match e:
            case Load():
                return names[e.buffer], e.index, e.dtype, e.valid is None
            case Op():
                return e.name, len(e.args), e.dtype
            case Const():
                return repr(e.value), e.dtype  # as a float, -0.0 would equal 0.0
            case IndexValue():
                return e.index, e.dtype
            case Cast():
                return Cast, e.dtype
        return e

    nests = tuple(
        (
            (p.is_row, names[p.name], p.node.axes, p.node.index, p.node.reduced),
            (p.node.combine, p.node.accumulate, p.node.position),
            tuple(map(properties, p.node.body.below)),
        )
        for p in group.placed
    )
    computed = {n.out.name: n.out for n in group.nodes}
    layouts = tuple(
        (buffer.shape, buffer.stride, buffer.dtype, buffer.device, name in needed, name in inputs)
        for name in names
        for buffer in (computed.get(name) or buffers[name],)
    )
    return group.domain, nests, layouts, reads_back


def _as_kernel_of(
    group: Group, name: str, buffers: Mapping[str, Buffer], first: Group, kernel: Kernel
) -> Kernel | None:
    """Returns the kernel of the group `first` for a group with the same key; None if a name would be ambiguous."""
    names = dict(zip(_names(first), _names(group), strict=True))
    origins = {old.origins: new.origins for old, new in zip(first.nodes, group.nodes, strict=True)}
    if all(old == new for old, new in (*names.items(), *origins.items())):
        return replace(kernel, name=name)

    def value_name(old: str) -> str:
        if old in names:
            return names[old]
        derived = _DERIVED.fullmatch(old)
        return f"{names[derived[1]]}{derived[2]}" if derived else old

    values = {s.name for s in kernel.statements() if hasattr(s, "name")}
    if any(old not in names and value_name(old) in buffers for old in values):
        return None
    return renamed(kernel, name, names, value_name, lambda old: origins.get(old, old))
