"""Tests of minidynamo/autograd/graph/restride.py: results of writes along a dimension keep their layout."""

import pytest
import torch

from tests.autograd.programs import compile_program, graphs, targets

PROGRAMS = {
    "index_add": lambda x, y, rows: x.index_add_(0, rows, y[:3], alpha=2),
    "index_copy": lambda x, y, rows: x.index_copy_(-1, rows, y[:, :3]),
    "index_reduce": lambda x, y, rows: x.index_reduce_(1, rows, y[:, :3], "amax"),
    "scatter": lambda x, y, rows: x.scatter_(0, rows[:, None].expand(3, 5), y),
    "scatter_value": lambda x, y, rows: x.scatter_(-2, rows[:, None], 0.5),
    "scatter_add": lambda x, y, rows: x.scatter_add_(1, rows[None].expand(4, 3), y),
    "scatter_reduce": lambda x, y, rows: x.scatter_reduce_(0, rows[None], y, "prod", include_self=False),
    "cumsum": lambda x, y, rows: x.cumsum_(0),
    "cumprod": lambda x, y, rows: x.cumprod_(-1),
}


def given(transposed=True):
    torch.manual_seed(0)
    x, y = torch.rand(5, 4).t() if transposed else torch.rand(4, 5), torch.rand(4, 5)
    return x, y, torch.tensor([2, 0, 3])


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_lie_as_what_is_written(name):
    def program(x, y, rows):
        return (PROGRAMS[name](x, y, rows) * 2,)

    (x, *rest), (own, *others) = given(), given()
    results = compile_program(program, given())([own, *others])
    torch.testing.assert_close(tuple(results), program(x, *rest))
    torch.testing.assert_close(own, x)
    assert own._version == x._version
    made = targets(graphs(program, given()).forward)
    assert "aten.permute.default" in made and "aten.clone.default" not in made
    assert "aten.permute.default" not in targets(graphs(program, given(False)).forward)
