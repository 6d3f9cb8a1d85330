"""Tests of minidynamo/tracer/graph/written_memory.py: the written regions, their extent, programs without a saved
region, and the positions that operations look up."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F

from minidynamo.guards.source import Local
from minidynamo.tracer.graph.dead_code import may_raise
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.graph.written_memory import positions_of
from minidynamo.variables.base import ConstantVariable

C = ConstantVariable


class Program:
    """A graph over real tensors, which may raise an error that depends on data."""

    def __init__(self, **tensors):
        self.values = tensors
        self.graph = OutputGraph(lambda: None)
        self.tensors = {name: self.graph.inputs.tensor(value, Local(name)) for name, value in tensors.items()}

    def __getitem__(self, name):
        return self.tensors[name]

    def emit(self, target, *args):
        return self.graph.emit(target, args, {})

    def finish(self):
        """Returns its writes, and its lookups."""
        module, self.inputs = self.graph.finish([], [])
        return self.graph.writes_of(module, may_raise=any(map(may_raise, module.graph.nodes)))

    def writes(self):
        return self.finish()[0]

    def args(self, **others):
        """Returns the arguments of the graph."""
        return [(self.values | others)[given.source.name] for given in self.inputs]

    def given(self, writes, **others):
        """Returns the inputs of the programs of its writes."""
        args = self.args(**others)
        return [args[k] for k in writes.positions]


def kept(program):
    """Returns the names of the written tensors, and the saved part of a program with one more raising operation."""
    program.emit(torch.linalg.cholesky, program["m"])
    writes = program.writes()
    memory = writes.find(*program.given(writes))
    names = [name for tensor in memory.tensors for name, value in program.values.items() if value is tensor]
    return names, [*memory.views, *(part.read(*part.where) for part in memory.parts)]


def program():
    tensors = {
        "x": torch.arange(12.0).view(3, 4),
        "y": torch.zeros(2),
        "m": torch.eye(2),
        "i": torch.tensor([2, 0]),
        "j": torch.tensor([1]),
    }
    return Program(**tensors)


def test_a_graph_that_writes_to_nothing_outside_has_no_writes():
    p = program()
    own = p.emit(torch.exp, p["x"])
    p.emit("add_", own, C(1))
    p.emit(torch.linalg.cholesky, p["m"])
    assert p.writes() is None


def test_nothing_is_kept_where_no_data_can_make_the_graph_raise():
    p = program()
    p.emit("add_", p["x"], C(1))
    writes = p.writes()
    assert not writes.can_roll_back
    memory = writes.find(*p.given(writes))
    assert memory.tensors[0] is p.values["x"] and len(memory.tensors) == 1
    assert not memory.views and not memory.parts


def test_a_write_to_a_view_keeps_the_view():
    p = program()
    row = p.emit("select", p["x"], C(0), C(1))
    p.emit("mul_", row, C(2))
    names, values = kept(p)
    assert names == ["x"] and [value.tolist() for value in values] == [[4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("operation", "arguments", "expected"),
    [
        (operator.setitem, ("x", "i", 0.0), [[8, 9, 10, 11], [0, 1, 2, 3]]),
        ("index_fill_", ("x", 0, "i", 0.0), [[8, 9, 10, 11], [0, 1, 2, 3]]),
        ("index_fill_", ("x", 1, "i", 0.0), [[2, 0], [6, 4], [10, 8]]),
        ("scatter_", ("row", 0, "i", 0.0), [6, 4]),
    ],
)
def test_a_write_at_positions_keeps_what_is_there(operation, arguments, expected):
    p = program()
    named = {**p.tensors, "row": p.emit("select", p["x"], C(0), C(1))}
    p.emit(operation, *(named[a] if isinstance(a, str) else C(a) for a in arguments))
    names, values = kept(p)
    assert names == ["x"] and [value.tolist() for value in values] == [expected]


def test_many_positions_keep_the_whole():
    tensors = {"x": torch.arange(3.0), "m": torch.eye(2), "i": torch.zeros(50, dtype=torch.long)}
    p = Program(**tensors)
    p.emit("index_fill_", p["x"], C(0), p["i"], C(1.0))
    assert kept(p)[1][0].tolist() == [0, 1, 2]


def test_positions_that_the_graph_has_written_keep_the_whole():
    p = program()
    p.emit("add_", p["i"], C(0))
    p.emit("index_fill_", p["x"], C(0), p["i"], C(1.0))
    names, values = kept(p)
    assert sorted(names) == ["i", "x"] and [value.shape for value in values] == [(2,), (3, 4)]


def test_positions_are_computed_before_the_graph_runs():
    p = program()
    position = p.emit(torch.sub, p["i"], C(0))
    p.emit("index_fill_", p["x"], C(0), position, C(1.0))
    assert kept(p)[1][0].tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]


def test_what_is_not_known_before_keeps_the_memory():
    p = program()
    scaled = p.emit(torch.exp, p["y"])
    mask = p.emit(torch.gt, scaled, C(0))
    p.emit("copy_", p["y"], scaled)
    p.emit(operator.setitem, p["y"], mask, C(1.0))
    _, values = kept(p)
    assert all(value.nbytes == 8 if isinstance(value, torch.Tensor) else value.nbytes() == 8 for value in values)


def test_positions_that_do_not_exist_are_for_the_graph_to_tell():
    p = program()
    p.emit("index_fill_", p["x"], C(0), p["i"], C(1.0))
    p.emit(torch.linalg.cholesky, p["m"])
    writes = p.writes()
    given = p.given(writes, i=torch.tensor([99]))
    with pytest.raises(IndexError):
        [part.read(*part.where) for part in writes.find(*given).parts]
    (part,) = writes.find_all_memory(*given).parts
    before = part.read(*part.where)
    p.values["x"].zero_()
    part.write(*part.where, before)
    assert p.values["x"].sum() == 66


@pytest.mark.parametrize(("positions", "expected"), [([2, 0], True), ([0, 3], False), ([-1, 0], False), ([], True)])
def test_positions_are_looked_at_before_the_graph_runs(positions, expected):
    p = program()
    p.emit("index_fill_", p["x"], C(0), p["i"], C(1.0))
    writes, lookups = p.finish()
    assert writes.can_roll_back
    assert lookups.exist(p.args(i=torch.tensor(positions, dtype=torch.long))) is expected


def test_other_data_may_always_make_it_raise():
    p = program()
    p.emit("index_fill_", p["x"], C(0), p["i"], C(1.0))
    p.emit(torch.linalg.cholesky, p["m"])
    _, lookups = p.finish()
    assert lookups is None


def test_positions_at_positions_that_do_not_exist():
    p = program()
    position = p.emit(torch.index_select, p["i"], C(0), p["j"])
    p.emit(torch.index_select, p["x"], C(0), position)
    _, lookups = p.finish()
    assert lookups.exist(p.args()) and not lookups.exist(p.args(j=torch.tensor([7])))


F32, I64 = torch.empty(4, 3), torch.empty(2, dtype=torch.long)


def node_of(target, *args):
    """Returns a call of a node for each tensor among the arguments, and for each in a tuple."""
    graph = torch.fx.Graph()

    def placed(value):
        if isinstance(value, tuple):
            return tuple(map(placed, value))
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder("value")
        node.meta["example_value"] = value
        return node

    create = graph.call_method if isinstance(target, str) else graph.call_function
    return create(target, placed(args))


@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [
        (torch.index_select, (F32, 1, I64), [(0, 3)]),
        ("index_add_", (F32, 0, I64, F32), [(0, 4)]),
        ("scatter_", (F32, -1, I64, 1.0), [(0, 3)]),
        (operator.getitem, (F32, I64), [(-4, 4)]),
        (operator.setitem, (F32, (slice(None), I64), 0.0), [(-3, 3)]),
        (operator.getitem, (F32, (I64, I64)), [(-4, 4), (-3, 3)]),
        ("index_put_", (F32, (I64,), F32), [(-4, 4)]),
        (F.embedding, (I64, F32), [(0, 4)]),
        (F.cross_entropy, (F32, I64), [(0, 3)]),
        (F.nll_loss, (torch.empty(5), I64), [(0, 5)]),
        (operator.getitem, (F32, (None, I64, None, I64)), [(-4, 4), (-3, 3)]),
        (operator.floordiv, (I64, 2), []),
        (torch.repeat_interleave, (F32, 2), []),
    ],
)
def test_positions_and_their_ranges(target, args, expected):
    assert [tuple(found[1:]) for found in positions_of(node_of(target, *args))] == expected


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (torch.linalg.cholesky, (F32,)),
        (operator.floordiv, (I64, I64)),
        (operator.floordiv, (I64, 0)),
        (operator.setitem, (F32, F32 > 0, F32)),
        (operator.getitem, (F32, (..., I64))),
        (torch.repeat_interleave, (F32, I64)),
        (F.cross_entropy, (F32, F32)),
    ],
)
def test_what_hangs_on_more_is_not_known(target, args):
    assert positions_of(node_of(target, *args)) is None
