"""Owns the removal of loop nests and views without readers.

These nodes stay even without readers:

- other extern calls, because of possible side effects;
- loop nests with checks of indices, because of the error;
- `as_strided` views, because torch raises if the memory is too small.
"""

from __future__ import annotations

import dataclasses

import torch

from minidynamo.codegen.ir.expr import checks
from minidynamo.codegen.ir.loops import Extern, LoopProgram, Loops, Node, names_in
from minidynamo.codegen.scheduling.lifetimes import defines, reads


def remove_unused(program: LoopProgram) -> LoopProgram:
    """Returns the program without dead loop nests, dead views and their buffers."""
    needed = {*names_in(program.outputs), *program.inputs}
    kept: list[Node] = []
    for node in reversed(program.nodes):
        if defines(node) in needed or not _is_pure(node):
            needed.update(reads(node))
            kept.append(node)
    kept.reverse()
    alive = {*program.inputs, *program.constants, *map(defines, kept)}
    buffers = {name: b for name, b in program.buffers.items() if name in alive}
    return dataclasses.replace(program, nodes=tuple(kept), buffers=buffers)


def _is_pure(node: Node) -> bool:
    """Returns whether a node has no effect but its result."""
    if isinstance(node, Loops):
        return not checks(node.body)
    if not isinstance(node, Extern) or not node.is_view:
        return False
    return node.op.namespace == "aten" and node.op is not torch.ops.aten.as_strided.default
