"""Owns the removal of loop nests and views whose result nobody reads.

Other extern calls stay: what they do besides returning a value is not known. So do nests that check indices, and views
that torch makes in memory which may be too small, for the error.
"""

from __future__ import annotations

import dataclasses

import torch

from minidynamo.codegen.ir.expr import checks
from minidynamo.codegen.ir.loops import Extern, LoopProgram, Loops, Node, names_in
from minidynamo.codegen.scheduling.lifetimes import made, reads


def remove_unused(program: LoopProgram) -> LoopProgram:
    """The same program without dead loop nests and views, and their buffers."""
    needed = {*names_in(program.outputs), *program.inputs}
    kept: list[Node] = []
    for node in reversed(program.nodes):
        if made(node) in needed or not _does_nothing_else(node):
            needed.update(reads(node))
            kept.append(node)
    kept.reverse()
    alive = {*program.inputs, *program.constants, *map(made, kept)}
    buffers = {name: b for name, b in program.buffers.items() if name in alive}
    return dataclasses.replace(program, nodes=tuple(kept), buffers=buffers)


def _does_nothing_else(node: Node) -> bool:
    """Whether a node is there for its result alone."""
    if isinstance(node, Loops):
        return not checks(node.body)
    if not isinstance(node, Extern) or not node.is_view:
        return False
    return node.op.namespace == "aten" and node.op is not torch.ops.aten.as_strided.default
