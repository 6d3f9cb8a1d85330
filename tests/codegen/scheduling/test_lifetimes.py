"""Lifetimes: last uses of names and of storage that views share, and the reads that may move past extern calls."""

import math

import torch

from minidynamo.codegen.ir.loops import Extern, GetItem, LoopProgram, Name
from minidynamo.codegen.scheduling.lifetimes import Lifetimes, analyze, defined, defines, names_in, reads
from minidynamo.codegen.scheduling.schedule import schedule
from tests.codegen.graphs import lower


def test_names_in_nested_arguments():
    assert list(names_in(((Name("a"), 3), [Name("b"), None]))) == ["a", "b"]


def test_reads_and_made():
    program = lower(lambda x, y: (x * x + y) @ y, *torch.ones(2, 3, 3))
    mul, add, mm = program.nodes
    assert [(defines(n), reads(n)) for n in (mul, add, mm)] == [
        ("mul", ("x_1",)), ("add", ("mul", "y_1")), ("mm", ("add", "y_1")),
    ]  # fmt: skip


def test_a_read_moves_only_to_where_the_value_lives_anyway():
    program = lower(lambda x, y, w: ((x + 1) * (y @ w), y), *torch.ones(3, 4, 4))
    lifetimes = Lifetimes(program)
    assert lifetimes.segments == [0, 0, 1, 1]
    assert not lifetimes.may_read_later("x_1", 0, 1)
    assert lifetimes.may_read_later("y_1", 0, 1)
    assert lifetimes.may_read_later("x_1", 0, 0)


def test_reading_a_view_is_reading_its_source():
    program = lower(lambda x, w: ((x + 1) * 2, w @ w, x.t()), *torch.ones(2, 4, 4))
    assert Lifetimes(program).may_read_later("x_1", 0, 1)


def test_no_read_moves_across_a_write():
    call = Extern("none", "fill", (Name("x_1"),), mutates=("x_1",))
    program = lower(lambda x, w: (x + 1) * (w @ w) * x, *torch.ones(2, 4, 4))
    nodes = (program.nodes[0], call, *program.nodes[1:])
    lifetimes = Lifetimes(type(program)(program.inputs, nodes, program.outputs, program.buffers))
    assert not lifetimes.may_read_later("x_1", 0, 1)
    assert lifetimes.may_read_later("x_1", 1, 2)


def test_reading_what_may_lie_in_several_values_is_reading_each_of_them():
    program = lower(lambda x, y, w: ((x + 1) * (w @ w), y), *torch.ones(3, 4, 4))
    call = Extern("call", "anything", (Name("x_1"), Name("y_1")), aliases=("x_1", "y_1"))
    write = Extern("none", "fill", (Name("y_1"),), mutates=("y_1",))
    nodes = (call, write, *program.nodes)
    lifetimes = Lifetimes(type(program)(program.inputs, nodes, program.outputs, program.buffers))
    assert lifetimes.roots("call") == ("x_1", "y_1")
    assert not lifetimes.may_read_later("call", 1, 2)  # would follow the write to one of the roots


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
    assert (reads(found[0]), defined(found[0])) == (("x_1",), ("add",))
    assert (reads(found[1]), defined(found[1])) == (("add", "y_1"), ("mm",))


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
