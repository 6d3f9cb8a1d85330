"""Liveness: last uses of names and of the storage that views share."""

import math

import torch

from minidynamo.codegen.ir.loops import Extern, GetItem, LoopProgram, Name
from minidynamo.codegen.memory.liveness import analyze, defined, used
from minidynamo.codegen.scheduling.schedule import schedule
from tests.codegen.graphs import lower


def steps(function, *args):
    program: LoopProgram
    program, found = schedule(lower(function, *args), join=True, verify=True)
    return program, found


def test_last_uses():
    program, found = steps(lambda x, y, z: ((x + 1) @ y, x), *torch.ones(3, 4, 4))
    live = analyze(found, program.inputs, program.outputs)
    assert live.last_use["z_1"] == -1
    assert live.last_use["x_1"] == math.inf
    assert live.last_use["y_1"] == live.last_use["add"] == 1
    assert live.dying(-1) == ["z_1"]
    assert set(live.dying(1)) == {"add", "y_1"}
    assert (used(found[0]), defined(found[0])) == (("x_1",), ("add",))
    assert (used(found[1]), defined(found[1])) == (("add", "y_1"), ("mm",))


def test_a_view_keeps_storage_but_not_the_name():
    program, found = steps(lambda x: (x + 1).t(), torch.ones(3, 4))
    live = analyze(found, program.inputs, program.outputs)
    assert live.roots == {"t": ("add",)}
    assert live.last_use["add"] == 1
    assert live.storage_end["add"] == math.inf


def test_what_may_lie_in_the_memory_of_any_argument_keeps_all_of_them():
    """Covers functions outside torch, for which the returned argument is unknown."""
    call = Extern("call", "anything", (Name("x"), Name("y")), aliases=("x", "y"))
    item = GetItem("item", "call", 0, aliases=("x", "y"))
    live = analyze([call, item], ("x", "y"), (Name("item"),))
    assert live.owners("item") == ("x", "y") and live.owners("x") == ("x",)
    assert live.last_use["x"] == live.last_use["y"] == 0
    assert live.storage_end["x"] == live.storage_end["y"] == math.inf
