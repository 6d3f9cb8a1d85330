"""Owns the removal of loop nests whose result nobody reads.

Extern calls stay: what they do besides returning a value is not known. So do nests that check indices, for the error.
"""

from __future__ import annotations

import dataclasses

from minidynamo.codegen.ir.expr import checks
from minidynamo.codegen.ir.loops import LoopProgram, Loops, Node, names_in
from minidynamo.codegen.scheduling.lifetimes import made, reads


def remove_unused(program: LoopProgram) -> LoopProgram:
    """The same program without dead loop nests and their buffers."""
    needed = {*names_in(program.outputs), *program.inputs}
    kept: list[Node] = []
    for node in reversed(program.nodes):
        if not isinstance(node, Loops) or made(node) in needed or checks(node.body):
            needed.update(reads(node))
            kept.append(node)
    kept.reverse()
    alive = {*program.inputs, *program.constants, *map(made, kept)}
    buffers = {name: b for name, b in program.buffers.items() if name in alive}
    return dataclasses.replace(program, nodes=tuple(kept), buffers=buffers)
