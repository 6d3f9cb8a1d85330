"""Reading through indices, joining and padding, against eager."""

import pytest
import torch

from minidynamo.codegen.ir.loops import Extern
from tests.codegen.graphs import check, lower

pytestmark = pytest.mark.cpp

F = torch.nn.functional
X = torch.arange(60.0).view(3, 4, 5)
I = torch.tensor([[2, 0], [1, 1]])  # noqa: E741


def test_reading_through_indices():
    check(lambda x, i: (x.index_select(1, i[0]), F.embedding(i, x[0]), x[0].gather(1, i), x.sum(2).gather(0, i)), X, I)
    check(lambda x, i: (x[i], x[:, i], x[i, i - 3], x[:, i, i.int()], x[:, i - 1, 1:].sum(0)), X, I)


def test_separated_indices_are_left_to_torch():
    program = lower(lambda x, i: x[i, :, i] + 1, X, I)
    assert any(isinstance(n, Extern) for n in program.nodes)


def test_joining():
    check(lambda x: (torch.cat([x, x + 1, x[:, :1]], 1), torch.stack([x, x * 2], -1), torch.cat([x])), X, exact=True)
    check(lambda x: torch.cat([x, torch.empty(0), (x * 2).to(torch.float64)], 0), X, exact=True)
    many = lower(lambda x: torch.cat([x] * 20), X)
    assert isinstance(many.nodes[0], Extern)


def test_padding():
    check(lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, -1, 2, 0, -1, 1), value=3.0), F.pad(x + 1, (2, 2)).exp()), X)


def test_triangles_and_scatters():
    aten = torch.ops.aten
    check(lambda x: (x.tril(), x.triu(1), x.tril(-2)), X, exact=True)
    check(
        lambda x: (
            aten.select_scatter(x, x[:, 0] * 2, 1, -1),
            aten.slice_scatter(x, x[:, :2] + 9, 1, 1, 3),
            aten.slice_scatter(x, x[..., :2] + 9, 2, 1, 5, 2),
        ),
        X, exact=True,
    )  # fmt: skip
