"""Views: each against eager, by copying the elements of the view."""

import pytest
import torch

from minidynamo.codegen.ir.loops import Extern, Loops
from tests.codegen.graphs import check, lower

X = torch.arange(120.0).view(2, 3, 4, 5)

VIEWS = {
    "view": lambda x: x.view(6, 20),
    "view to more": lambda x: x.view(2, 3, 2, 2, 5),
    "permute": lambda x: x.permute(0, 3, -2, 1),
    "transpose": lambda x: x.transpose(1, -1),
    "t": lambda x: x[0, 0].t(),
    "expand": lambda x: x[:, :1].expand(2, 3, -1, -1),
    "expand to more": lambda x: x.expand(7, 2, 3, 4, 5),
    "unsqueeze": lambda x: x.unsqueeze(-1).unsqueeze(0),
    "squeeze": lambda x: x[:, :1, :1].squeeze(1).squeeze(),
    "slice": lambda x: x[:, 1:, ::2, -3:-1],
    "slice behind the end": lambda x: x[:, 5:, :100],
    "select": lambda x: x[1, -1],
    "diagonal": lambda x: x.diagonal(1, 2, 3),
    "chain": lambda x: x.permute(2, 0, 1, 3).reshape(8, 15).t()[3:].unsqueeze(1),
}


@pytest.mark.cpp
def test_views_equal_eager():
    compiled = check(lambda x: [function(x) + 1 for function in VIEWS.values()], X, exact=True)
    assert not [step for step in compiled.program.steps if isinstance(step, Extern)]


@pytest.mark.cpp
def test_pieces_equal_eager():
    def pieces(x):
        parts = [*x.split(2, 2), *x.split([1, 4], -1), *x.chunk(2, 2), *x.unbind(1)]
        return [p * 2 for p in parts]

    check(pieces, X, exact=True)


@pytest.mark.cpp
def test_copies_with_other_coordinates():
    check(lambda x: (x.flip(0, 2), x.repeat(2, 1, 3, 1), x.repeat(3, 1, 1, 1, 2)), X, exact=True)


def test_view_as_another_dtype_is_an_extern():
    call = lower(lambda x: x.view(torch.int32) + 1, X).nodes[0]
    assert isinstance(call, Extern) and call.is_view


def test_split_by_zero_is_left_to_torch():
    program = lower(lambda x: torch.ops.aten.split.Tensor(x, 0)[0] + 1, torch.ones(0))
    assert isinstance(program.nodes[0], Extern)
    assert isinstance(program.nodes[-1], Loops)
