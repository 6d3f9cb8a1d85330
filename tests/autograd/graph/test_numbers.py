"""Tests of minidynamo/autograd/graph/numbers.py, and of programs with symbolic sizes and numbers."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from minidynamo.autograd.graph.numbers import has_symbols, is_symbolic, key, keys, simplified
from minidynamo.compat import FakeTensorMode
from minidynamo.graph.unbacked_symints import hint_of
from tests.autograd.programs import (
    assert_same_for_sizes,
    compile_program,
    fake,
    graphs,
    inputs,
    intermediate_inputs,
    interpret,
    targets,
)


def symbolic(shape):
    return fake(FakeTensorMode(shape_env=ShapeEnv()), torch.randn(shape))


def test_numbers_are_compared_by_what_they_are():
    x = symbolic((5, 7, 5))
    a, b, c = x.shape
    assert key(a) == key(c) != key(b) and keys(x.shape)[0] == key(a) and key(3) == 3
    assert is_symbolic(a) and not is_symbolic(a - a) and simplified(a - a) == 0 and not is_symbolic(5)
    assert hint_of(a * b) == 35 and hint_of(4) == 4
    assert has_symbols([1, [a]]) and has_symbols(x) and not has_symbols(torch.ones(3)) and not has_symbols("x")
    assert not a.node.shape_env.guards


def with_numbers(make, *numbers):
    def made():
        args, leaves = make()
        return [*args, *numbers], leaves

    return made


def sizes_of(*shapes):
    return [inputs(*group) for group in shapes]


PAIRS = [((5, 7), (7, 3)), ((4, 9), (9, 6)), ((2, 2), (2, 2))]
TWO = [((5, 6),), ((3, 8),), ((9, 2),)]

PROGRAMS = {
    "matmul": (lambda x, w: ((x @ w).relu() @ w.t(),), PAIRS),
    "sizes are outputs": (lambda x: (x.sin(), x.shape[0], x.shape[1] * 2 + 1), TWO),
    "a size in arithmetic": (lambda x: (x * x.shape[0] / x.shape[1],), TWO),
    "mean": (lambda x: (x.exp().mean(), x.sum(0)), TWO),
    "layer_norm": (lambda x: (F.layer_norm(x, x.shape[1:]),), TWO),
    "softmax": (lambda x: (x.softmax(-1), x.log_softmax(0)), TWO),
    "reshape": (lambda x: (x.sin().reshape(-1, x.shape[0]),), TWO),
    "cat": (lambda x: (torch.cat([x, x.sin(), x[:1]]),), TWO),
    "split": (lambda x: tuple(part * 2 for part in x.split(x.shape[0] - 1)), TWO),
    "expand": (lambda x: (x[:, :1].expand(x.shape[0], 4) * 2,), TWO),
    "a view of an input": (lambda x: (x.view(x.shape[1], -1), x.t(), x[1:]), TWO),
    "a view of an intermediate": (lambda x: (y := x * 2, y.view(x.shape[0] * x.shape[1]), y[:, 1:]), TWO),
    "broadcast": (lambda x: (x + x.sum(1, keepdim=True) * torch.ones(x.shape[1]),), TWO),
    "arange": (lambda x: (x * torch.arange(x.shape[1]),), TWO),
    "where": (lambda x: (torch.where(x > 0, x, torch.zeros(x.shape)),), TWO),
    "gather": (lambda x: (x.gather(1, x.argsort(1)[:, :2]),), TWO),
    "dropout": (lambda x: (F.dropout(x.sin(), 0.5),), TWO),
    "not used in backward": (lambda x: (x.sin() * 2, (x.detach() * x.shape[0])), TWO),
    "conv": (
        lambda x, w: (F.conv2d(x, w, padding=1).relu(),),
        [((2, 3, 6, 6), (4, 3, 3, 3)), ((5, 3, 8, 8), (4, 3, 3, 3))],
    ),
    "pool": (lambda x: (F.max_pool2d(x.sin(), 2), F.adaptive_avg_pool2d(x, 1)), [((2, 3, 6, 6),), ((5, 3, 8, 8),)]),
    "attention": (
        lambda q: (F.scaled_dot_product_attention(q, q, q.sin(), is_causal=True),),
        [((2, 3, 6, 8),), ((4, 3, 5, 8),)],
    ),
    "embedding": (lambda w: (F.embedding(torch.arange(w.shape[0]) % 2, w).sum(1),), TWO),
    "channels last": (
        lambda x: (x.to(memory_format=torch.channels_last).sin() * 2,),
        [((2, 3, 6, 5),), ((5, 4, 2, 7),)],
    ),
    "transposed": (lambda x: (x.t().exp(),), TWO),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_for_all_sizes(name):
    program, shapes = PROGRAMS[name]
    assert_same_for_sizes(program, *sizes_of(*shapes))


def written(x):
    x.mul_(2)
    x[1:].add_(x.shape[0])
    return (x.sin(),)


def written_views(x):
    y = x * 1
    y.view(-1)[: x.shape[1]].fill_(x.shape[0])
    y.t()[1:].copy_(y.t()[:-1] * 2)
    y.unsqueeze(0).zero_().add_(x)
    return (y * 2, y[0])


@pytest.mark.parametrize("program", [written, written_views])
def test_writes_for_all_sizes(program):
    assert_same_for_sizes(program, *(intermediate_inputs(*shapes) for shapes in TWO))


def test_numbers_are_inputs():
    def program(x, n, lr):
        y = x * n - x.sin() * lr
        return y, n + x.shape[0], lr * 2, y.detach() * (n // 2)

    shapes = [inputs((5, 6)), inputs((3, 4)), inputs((2, 9))]
    numbers = [(7, 0.5), (9, 0.25), (0, 3.0)]
    assert_same_for_sizes(program, *(with_numbers(make, *pair) for make, pair in zip(shapes, numbers)))


def test_what_is_saved_of_numbers_is_no_tensor():
    def program(x, n):
        return (x.sum(0).expand(x.shape[0], x.shape[1]) * n,)

    gm = graphs(program, [torch.randn(4, 5, requires_grad=True), 3], dynamic=True)
    assert gm.signature.saved == () and gm.signature.saved_bytes == 0
    values = [node.meta["val"] for node in gm.backward.graph.nodes if node.op == "placeholder"]
    assert [type(value) for value in values[:-1]] == [torch.SymInt] * (len(values) - 1) and len(values) > 1


def test_a_size_keeps_no_tensor_for_backward():
    def program(x):
        y = x.sin()
        return (y * 2 + y.shape[0],)

    made = graphs(program, [torch.randn(4, 5, requires_grad=True)], dynamic=True)
    assert [value.op for value in made.signature.saved] == ["input"]
    assert "aten.sym_size.int" not in targets(made.backward)


def test_backward_is_compiled_for_symbols():
    x = torch.randn(4, 5, requires_grad=True)
    seen = []

    def compile_backward(gm, examples):
        seen.extend(examples)
        return interpret(gm, examples)

    compiled = compile_program(lambda x: (x.sin(),), [x], backward=compile_backward, dynamic=True)
    y = torch.randn(3, 7, requires_grad=True)
    compiled([y])[0].sum().backward()
    assert torch.equal(y.grad, y.detach().cos()) and len(seen) == 2 and all(map(has_symbols, seen))
