"""Tests of minidynamo/autograd/graph/gradients.py: gradients of selections of elements for all values, and strides of
gradients of reflections."""

import itertools

import pytest
import torch

import minidynamo
from minidynamo.autograd.graph.gradients import FORMULAS

INF, NAN = float("inf"), float("nan")
VALUES = [1.0, 2.0, 2.0], [1.0, INF, 3.0], [NAN, 1.0, NAN], [0.0, 2.0, 0.0]
# The gradients of products depend on data as well; they are calls (autograd/trace/fallback_op.py).
PROGRAMS = {
    "max": torch.Tensor.max,
    "min": torch.Tensor.min,
    "median": torch.Tensor.median,
    "nanmedian": torch.Tensor.nanmedian,
    "prod": torch.Tensor.prod,
    "prod of rows": lambda x: x.prod(0),
    "cumprod": lambda x: x.cumprod(0).sum(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_eager(name):
    program = PROGRAMS[name]
    compiled = minidynamo.compile(lambda x: program(x), backend="aot_eager", fullgraph=True)
    for values, incoming in itertools.product(VALUES, (1.0, INF)):
        found = []
        for function in (program, compiled):
            with_gaps = torch.tensor([values, values]).T.contiguous()[:, 0]  # gradients have no gaps
            x = with_gaps.requires_grad_()
            (gradient,) = torch.autograd.grad(function(x), x, torch.tensor(incoming))
            found.append(gradient)
        torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)
        assert found[0].stride() == found[1].stride()
    assert compiled.stats.graphs == 1


REFLECTIONS = {
    "householder_product": lambda x: torch.linalg.householder_product(x, x[0] * 1),
    "ormqr": lambda x: torch.ormqr(x, x[0] * 1, x.new_ones(x.shape[0], 2)),
}


@pytest.mark.parametrize("name", REFLECTIONS)
def test_gradients_by_reflections_are_laid_out_as_in_eager(name):
    program = REFLECTIONS[name]
    compiled = minidynamo.compile(lambda x: program(x * 1).sin(), backend="aot_eager", fullgraph=True)
    for x in (torch.arange(12.0).reshape(3, 4).mT, torch.arange(12.0).reshape(4, 3)):
        x.requires_grad_()
        found = [torch.autograd.grad(f(x).sum(), x)[0] for f in (lambda x: program(x * 1).sin(), compiled)]
        torch.testing.assert_close(*found)
        assert found[0].stride() == found[1].stride()


def test_the_formulas_have_the_names_of_gradient_functions():
    x = torch.ones(3, requires_grad=True)
    made = [x.max(), x.min(), x.median(), x.nanmedian()]
    made += [program(torch.eye(3, requires_grad=True)) for program in REFLECTIONS.values()]
    assert {value.grad_fn.name() for value in made} == set(FORMULAS)
