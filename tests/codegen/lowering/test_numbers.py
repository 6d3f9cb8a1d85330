"""The numbers of a graph: numbers bound by inputs, and computations left to torch."""

import torch

from minidynamo.codegen.ir.loops import Compute, Extern, Name
from minidynamo.codegen.ir.size import Derived, hint, known_at_least, numbers_of
from minidynamo.codegen.lowering.graph import lower_graph
from tests.codegen.graphs import trace_symbolic


def lowered(function, *args):
    return lower_graph(trace_symbolic(function, *args))


def test_sizes_of_inputs_are_read_once():
    program = lowered(lambda x, y: x + y, torch.ones(5, 7), torch.ones(5, 7))
    rows, columns = program.buffers["x_1"].shape
    assert program.buffers["add"].stride == (columns, 1)
    assert program.prelude == (
        Compute(str(rows), torch.Tensor.size, (Name("x_1"), 0)),
        Compute(str(columns), torch.Tensor.size, (Name("x_1"), 1)),
    )
    assert (hint(rows), hint(columns)) == (5, 7)
    assert known_at_least(rows, 2) and not known_at_least(rows, 3)


def test_number_inputs_are_symbols_of_any_sign():
    program = lowered(lambda x, n: x * n, torch.ones(5), 9)
    assert program.numbers == {"n_1"}
    (symbol,) = numbers_of(program.nodes[0].body.args[1].value.index.const)
    assert (symbol.name, symbol.lower, symbol.hint) == ("n_1", None, 9)


def test_derived_sizes():
    program = lowered(lambda x: x[: x.shape[0] // 2] * 2, torch.ones(9))
    (size,) = program.buffers["mul"].shape
    (number,) = numbers_of(size)
    assert isinstance(number, Derived) and number.op == "floordiv" and number.lower >= 1


def test_arithmetic_on_floats_is_done_by_the_host_as_written():
    program = lowered(lambda x, rate: x * (rate * 0.1 + 1.0), torch.ones(5), 0.3)
    steps = [number for number in program.prelude if number.op is not torch.Tensor.size]
    assert [(step.op.__name__, step.args[1]) for step in steps] == [("mul", 0.1), ("add", 1.0)]
    assert all(not isinstance(node, Extern) for node in program.nodes)


def test_sizes_that_depend_on_data_are_left_to_torch():
    program = lowered(lambda x: torch.ops.aten.nonzero(x) + 1, torch.ones(5))
    assert [type(node) for node in program.nodes] == [Extern, Extern]


def test_no_guard_is_added():
    gm = trace_symbolic(lambda x: torch.softmax(x[:, 3:], -1), torch.ones(5, 9))
    node = next(n for n in gm.graph.nodes if n.op == "placeholder")
    environment = node.meta["val"].shape[0].node.shape_env
    before = list(environment.guards)
    lower_graph(gm)
    assert list(environment.guards) == before
