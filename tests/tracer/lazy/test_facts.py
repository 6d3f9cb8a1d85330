"""Facts about tensors: the guard for each fact alone, and a single guard for all facts of a used tensor."""

from __future__ import annotations

import pytest
import torch

import minidynamo


def matrix(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def guards(fn, *args):
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True, dynamic=False)
    compiled(*args)
    return str(compiled.guards())


def test_a_fact_is_guarded_alone():
    shown = guards(lambda x, y: y * x.shape[0] if x.dtype is torch.float32 else y, matrix(2, 3), matrix(2))
    assert "value of `x.shape[0]`: 2" in shown and "`x.dtype`: torch.float32" in shown
    assert "tensor `y`" in shown and "tensor `x`" not in shown


def test_a_tensor_that_is_used_has_one_guard():
    for read_first in (True, False):

        def reads(x, read_first=read_first):
            size = x.shape[0] if read_first else 0
            made = x * 2
            return made * size if x.shape[0] > 1 and x.numel() > 2 and x.dtype is torch.float32 else made

        shown = guards(reads, matrix(2, 3))
        assert "tensor `x`" in shown and "x.shape" not in shown and "numel" not in shown and "x.dtype" not in shown


def test_what_is_only_returned_is_not_read():
    shown = guards(lambda x: (x.shape, x.shape[0], x.dtype, x.numel()), matrix(2, 3))
    assert "x.shape" not in shown and "x.dtype" not in shown and "numel" not in shown


def before_data(x, y):
    shape, first = x.shape, x.shape[0]
    x.data = y
    return shape, first, x.shape


def before_a_resize(x, y):
    shape, first = x.shape, x.shape[0]
    x.resize_(5, 5).zero_()
    return shape, first, x.shape


def before_it_requires_grad(x, y):
    requires = x.requires_grad
    x.requires_grad_()
    return requires, x.requires_grad, y * 2


def before_a_new_dimension(x, y):
    shape, ndim = x.shape, x.ndim
    y.unsqueeze_(0)
    return shape, ndim, x.shape, x.shape == y.shape, y * 2


def all_ways(x, y):
    first, *others = x.shape
    sizes = list(x.shape), (*x.shape,)[:1], (*x.shape[:1], 3), x.shape.numel(), max(x.shape), x.size(-1)
    return y.view(-1, others[0]), first, sizes, torch.zeros(*x.shape), x.new_zeros(x.shape[::-1])


def behind_a_break(x, y):
    first, shape = x.size(0), x.shape
    minidynamo.graph_break()
    return y * first, shape, x.shape[-1]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "program",
    [before_data, before_a_resize, before_it_requires_grad, before_a_new_dimension, all_ways, behind_a_break],
    ids=lambda program: program.__name__,
)
def test_facts_are_those_of_eager(program, dynamic):
    compiled = minidynamo.compile(program, backend="eager", dynamic=dynamic, recompile_limit=30)
    for shape, same in (((2, 3), False), ((2, 3), True), ((4, 3), False), ((5, 6), True), ((1, 3), False)):
        results = []
        for function in (program, compiled):
            x = matrix(*shape)
            y = x if same else matrix(6, 1)
            try:
                results.append(repr((function(x, y), x, y)))
            except RuntimeError as error:
                results.append(type(error).__name__)
        assert results[0] == results[1]


def test_a_size_that_varies_is_one_symbol_wherever_it_is_read():
    @minidynamo.compile(backend="eager")
    def program(x, mask):
        return x * 2 if mask.shape[0] == x.shape[0] and mask.shape[-1] > 2 else x

    for rows, others in ((2, 2), (4, 4), (5, 5), (6, 7), (7, 7)):
        x = matrix(rows, 3)
        assert torch.equal(program(x, matrix(others, 3)), x * 2 if rows == others else x)
        assert torch.equal(program(x, matrix(others, 2)), x)
    assert program.stats.compiles <= 6
