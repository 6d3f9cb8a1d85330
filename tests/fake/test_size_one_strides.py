"""Strides of dimensions of one element equal eager's, for arguments of any layout, and dynamic sizes."""

from __future__ import annotations

import contextlib
import random

import pytest
import torch

import minidynamo
from minidynamo import compat
from minidynamo.fake.mode import FakeTensorMode
from minidynamo.fake.size_one_strides import RULES
from minidynamo.graph.unbacked_symints import hint_of
from tests.fake.test_mode import laid_out

aten = torch.ops.aten
ONES = [
    *(aten.add.Tensor, aten.mul.Tensor, aten.where.self, aten.addcmul.default, aten.add.Scalar, aten.gt.Scalar),
    *(aten.sin.default, aten.sigmoid.default, *RULES),
]
FOLLOWING = {
    aten._log_softmax.default: lambda shape: (-1, False),
    aten._to_copy.default: lambda shape: ({"dtype": torch.float64},),
    aten._unsafe_view.default: lambda shape: ([*shape[::-1]],),
    aten.add.Scalar: lambda shape: (2,),
    aten.amax.default: lambda shape: ([0], True),
    aten.amin.default: lambda shape: ([0], True),
    aten.expand.default: lambda shape: ([2, *shape],),
    aten.flip.default: lambda shape: ([0],),
    aten.full_like.default: lambda shape: (2,),
    aten.gt.Scalar: lambda shape: (2,),
    aten.huber_loss.default: lambda shape: (0,),
    aten.index_add.default: lambda shape: (0, torch.tensor([0]), torch.ones(1, *shape[1:])),
    aten.index_copy.default: lambda shape: (0, torch.tensor([0]), torch.ones(1, *shape[1:])),
    aten.index_put.default: lambda shape: ([torch.tensor([0])], torch.ones(1, *shape[1:])),
    aten.linalg_vector_norm.default: lambda shape: (2, [0], True),
    aten.masked_fill.Scalar: lambda shape: (torch.zeros(shape, dtype=torch.bool), 2),
    aten.masked_fill.Tensor: lambda shape: (torch.zeros(shape, dtype=torch.bool), torch.tensor(2.0)),
    aten.native_dropout.default: lambda shape: (0.5, True),
    aten.native_layer_norm.default: lambda shape: ([shape[-1]], None, None, 1e-5),
    aten.prod.dim_int: lambda shape: (0, True),
    aten.randint_like.default: lambda shape: (9,),
    aten.randint_like.low_dtype: lambda shape: (2, 9),
    aten.renorm.default: lambda shape: (2, 0, 1.0),
    aten.roll.default: lambda shape: ([1], [0]),
    aten.sort.stable: lambda shape: ({"stable": True},),
    aten.sum.dim_IntList: lambda shape: ([0], True),
    aten.view.default: lambda shape: ([*shape],),
}
"""What comes behind the tensors that are given; names in a dict."""
GIVEN = {
    aten.index_add.default: 1,
    aten.index_copy.default: 1,
    aten.index_put.default: 1,
    aten.masked_fill.Scalar: 1,
    aten.masked_fill.Tensor: 1,
    aten.native_layer_norm.default: 1,
}


def imitated(mode, value):
    """Returns a fake tensor; if the mode has symbols, all sizes but 1 are symbols."""
    if isinstance(value, list):
        return [imitated(mode, one) for one in value]
    symbolic = {"static_shapes": False} if mode.shape_env is not None else {}
    return mode.from_tensor(value, **symbolic) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("vary", [False, True])
@pytest.mark.parametrize("op", ONES, ids=str)
def test_dimensions_of_one_element_have_eagers_strides_too(op, vary, request):
    """Covers operations with strides that torch's fake tensors predict; one of all layouts may be missed."""
    chosen, missed = random.Random(str(op)), 0
    count = GIVEN.get(op) or sum(str(argument.type) == "Tensor" for argument in op._schema.arguments)
    for _ in range(40 if request.config.getoption("--slow") else 8):
        shape = [chosen.choice((1, 1, 2, 3)) for _ in range(chosen.randint(2, 4))]
        given = [laid_out(shape, chosen.sample(range(len(shape)), len(shape))) for _ in range(count)]
        if op is aten.where.self:
            given[0] = given[0] > 0
        *rest, named = [*FOLLOWING.get(op, lambda shape: ())(shape), {}]
        if rest and isinstance(rest[-1], dict):
            named = rest.pop()
        try:
            real = op(*given, *rest, **named)
        except RuntimeError:  # no view has these sizes
            continue
        env = compat.symbolic().ShapeEnv() if vary else None
        mode = FakeTensorMode(shape_env=env)
        with mode, compat.python_dispatcher() if vary else contextlib.nullcontext():
            foretold = op(*(imitated(mode, a) for a in (*given, *rest)), **named)
        pairs = [made if isinstance(made, tuple | list) else [made] for made in (real, foretold)]
        missed += any(one.stride() != tuple(map(hint_of, other.stride())) for one, other in zip(*pairs))
    assert missed <= 1


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("lie", ["plain", "turned", "with gaps"])
@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (1, 1)])
def test_programs_see_strides_of_dimensions_of_one_element(backend, shape, lie, dynamic):
    def program(a, b):
        c = b * a
        c.t().mul_(2)
        copies = torch.zeros_like(a.t()), torch.zeros_like(a.t()).t(), a.double(), a.t().bool()
        return (
            c,
            *copies,
            a.t() * 2,
            a.t().exp(),
            a.roll(1, -1),
            a.roll(1),
            a.t().flip(0),
            a.sort(0)[0],
            a.tril(),
            a - 1,
        )

    given = torch.ones(shape), torch.ones(shape)
    if lie != "plain":
        given = [one.t().clone().t() if lie == "turned" else one.repeat(1, 2)[:, ::2] for one in given]
    compiled = minidynamo.compile(program, backend=backend, dynamic=dynamic)
    assert [made.stride() for made in compiled(*given)] == [made.stride() for made in program(*given)]


EMPTY = [
    aten.add.Tensor,
    aten.mul.Tensor,
    aten.where.self,
    aten.sin.default,
    aten.clone.default,
    aten.huber_loss.default,
]


EMPTY_OF_ONE = {
    aten.clone.default: (),
    aten.native_dropout.default: (0.5, True),
    aten.prod.dim_int: (0, True),
    aten.roll.default: ([1], [0]),
    aten.sum.dim_IntList: ([0], True),
    aten.zeros_like.default: (),
}


@pytest.mark.parametrize("op", EMPTY_OF_ONE, ids=str)
def test_what_is_made_like_one_without_elements_lies_as_in_eager(op):
    chosen = random.Random(str(op))
    for _ in range(20):
        shape = [0, *(chosen.choice((1, 2, 3)) for _ in range(chosen.randint(1, 3)))]
        chosen.shuffle(shape)
        one = torch.empty(0).as_strided(shape, [chosen.choice((0, 1, 2, 3, 6)) for _ in shape])
        mode = FakeTensorMode()
        with mode:
            foretold = op(mode.from_tensor(one), *EMPTY_OF_ONE[op])
        pairs = [made if isinstance(made, tuple) else [made] for made in (op(one, *EMPTY_OF_ONE[op]), foretold)]
        assert [made.stride() for made in pairs[0]] == [made.stride() for made in pairs[1]], (shape, one.stride())


@pytest.mark.parametrize("op", EMPTY, ids=str)
def test_what_has_no_elements_lies_as_in_eager(op):
    chosen = random.Random(str(op))
    for _ in range(20):
        rank = chosen.randint(2, 4)
        shape = [0, *(chosen.choice((0, 1, 2, 3)) for _ in range(rank - 1))]
        chosen.shuffle(shape)
        one, other = (laid_out(shape, chosen.sample(range(rank), rank)) for _ in range(2))
        other = 2 if op is aten.mul.Tensor else other
        args = [one] if op in (aten.sin.default, aten.clone.default) else [one, other]
        args = [one > 0, *args] if op is aten.where.self else args
        mode = FakeTensorMode()
        with mode:
            foretold = op(*imitated(mode, args))
        assert foretold.stride() == op(*args).stride(), [getattr(arg, "stride", int)() for arg in args]
