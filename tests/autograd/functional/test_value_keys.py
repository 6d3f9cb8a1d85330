"""Tests of minidynamo/autograd/functional/value_keys.py: equal values have equal names in all graphs of a program."""

import torch

from minidynamo.autograd.functional.functionalize import functionalize
from minidynamo.autograd.functional.value_keys import symbol_values, symbols_of, value_keys
from minidynamo.autograd.graph.inputs import layout_of
from minidynamo.autograd.trace.decompositions import decomposition_table
from minidynamo.autograd.trace.joint import trace_joint
from tests.autograd.programs import graph_of, inputs


def named(program, args, orders=(), dynamic=False):
    gm, examples = graph_of(program, args, dynamic=dynamic)
    trace = trace_joint(gm, layout_of(gm, examples), examples, decomposition_table(()), orders)
    functional = functionalize(trace, [f"arg{i}" for i in range(len(args))], examples)
    names = value_keys(functional, symbols_of(examples))
    nodes = functional.emitter.graph.nodes
    return [(str(node.target), names[node]) for node in nodes if node.op == "call_function"]


def test_forward_has_the_same_names_in_the_graph_of_another_order():
    def program(x, w):
        return ((x @ w).sin() + torch.rand_like(x),)

    args = inputs((3, 3), (3, 3))()[0]
    first, second = named(program, args), named(program, args, ((True,), (False, False)))
    assert [name for name in first if name not in second] == []
    assert len(second) > len(first)


def test_random_numbers_are_told_apart():
    names = named(lambda x: (torch.rand_like(x), torch.rand_like(x), x + 1, x + 1, x + 2), [torch.ones(3)])
    draws, sums = ([name for target, name in names if op in target] for op in ("rand_like", "add"))
    assert draws[0] != draws[1]
    assert sums[0] == sums[1] != sums[2]


def test_constants_are_told_apart_by_what_they_hold():
    (one,), (other,), (same,) = (
        named(lambda x, n=n: (x * torch.tensor([n, 2.0, 3.0]),), [torch.ones(3)]) for n in (1.0, 2.0, 1.0)
    )
    assert one == same != other


def test_names_do_not_depend_on_symbols():
    def program(x, y):
        return (x.sum(0).expand(y.shape[0], 3) * y,)

    one = named(program, inputs((5, 3), (4, 3))()[0], dynamic=True)
    other = named(program, inputs((7, 3), (6, 3))()[0], dynamic=True)
    assert one == other


def test_symbols_are_read_of_inputs():
    _, examples = graph_of(lambda x, n: (x * n,), [torch.ones(5, 3), 7], dynamic=True)
    symbols = symbols_of(examples)
    assert sorted(symbols.values()) == [(0, "size", 0), (0, "size", 1), (1, "number", 0)]
    assert sorted(symbol_values(symbols, [torch.ones(4, 2), 9]).values()) == [2, 4, 9]
