"""Random programs in which tensors are written to and operations raise errors that depend on data, each as in eager."""

from __future__ import annotations

import pytest
import torch

from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.random import test_random_exceptions

STATEMENTS = (
    *(
        "y = y + 1",
        "y = y * x.sum()",
        "log.append({n})",
        "log.append(y)",
        "d['k'] = {n}",
        "d['t'] = buf * 2",
        "del d['k']",
    ),
    *(
        "buf.add_({n})",
        "buf[1:5].mul_(2)",
        "buf[p] = x[p] + {n}",
        "buf.index_add_(0, p, w)",
        "w.scatter_add_(0, q % 3, w)",
    ),
    *(
        "w.copy_(x[q])",
        "x.sub_(1)",
        "buf.view(2, 4)[:, {n} % 4].fill_({n})",
        "x.data.mul_(1.5)",
        "buf.masked_fill_(x > 3, 1.0)",
    ),
    *(
        "torch.cumsum(x, 0, out=buf)",
        "buf.clamp_(max={n})",
        "d['b'] = d.get('b', buf).add_(1)",
        "torch.nn.init.normal_(w)",
    ),
    *("p = p + len(log) % 2", "buf = buf + 1", "buf, x = x, buf", "w = w.clone()", "buf.data = x * 2", "q.copy_(p)"),
    *("y = y + x[p].sum()", "y = y + x[q].sum()", "log.append(w[q % 4])", "y = y + torch.rand(3).sum()"),
    *("y = torch.nn.functional.embedding(q, x.unsqueeze(1)).sum()", "y = y + (q // (p - 2)).sum()"),
    *("xs.append(x[p])", "y = y + xs.pop(0).sum() * 1", "xs[0].mul_(2)"),
)


class Writer(test_random_exceptions.Writer):
    """Adds its own statements to the blocks of the base writer."""

    simple = STATEMENTS
    start = ("def f(x, log, d, buf, w, xs, p, q):", "    y, i, kept = w.sum(), 0, None")


def check(seed: int, backend: str) -> None:
    source = Writer(seed).program()
    names = dict(vars(test_random_exceptions))
    exec(compile(source, f"<program {seed}>", "exec"), names)

    def called_with(first, second):
        def make():
            xs = [torch.ones(2), torch.ones(3)]
            positions = torch.tensor(first), torch.tensor(second)
            return torch.arange(8.0), [0], {"k": 0}, torch.zeros(8), torch.ones(3), xs, *positions

        return make

    calls = ([0, 1, 2], [3, 4, 5]), ([1, 99, 0], [1, 2, 3]), ([3, 2, 1], [0, 50, 1]), ([4, 4, 0], [1, 1, 1])
    try:
        assert_same_as_eager(names["f"], *(called_with(*positions) for positions in calls), backend=backend)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{source}") from error


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(24))
def test_random_program(seed):
    check(seed, ("eager", "aot_eager")[seed % 2])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(100, 1100, 50))
def test_random_programs(first):
    for seed in range(first, first + 50):
        check(seed, ("eager", "aot_eager")[seed % 2])


@pytest.mark.cpp
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(2000, 2050))
def test_random_program_in_generated_code(seed):
    check(seed, "native")
