"""Eager's errors are raised even for unused results, through the whole autograd stage."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.autograd.aot import aot_graphs
from minidynamo.testing import assert_same_as_eager
from tests.autograd.programs import graph_of
from tests.end_to_end.programs import rows_of

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


class Unused:
    def selects(x, i):
        x[i]
        return x + 1

    def gathers(x, i):
        torch.gather(x, 0, i).sin()
        return x + 1

    def divides(x, i):
        i // (i - 5)
        return x + 1

    def inverts(x, i):
        torch.linalg.inv(x.view(1, 1) * 0)
        return x + 1

    def subtracts(x, i):
        (i > 0) - True
        return x + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", rows_of(Unused))
@pytest.mark.parametrize("grad", [False, True])
def test_an_error_is_raised_for_an_unused_result(fn, backend, grad):
    arguments = torch.ones(1, requires_grad=grad), torch.tensor([5])
    with pytest.raises((RuntimeError, IndexError)) as eager:
        fn(*arguments)
    with pytest.raises(eager.type, match=str(eager.value)[:20]):
        minidynamo.compile(fn, backend=backend)(*arguments)


def test_a_write_to_a_part_of_what_nobody_reads_is_dropped():
    def program(x):
        made = x * 2
        made[:2].tanh_()
        return x + 1

    compiled = minidynamo.compile(program, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(torch.ones(4)), torch.full((4,), 2.0))
    assert "tanh" not in str(compiled.code()).split("# ATen graph")[1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_classes_out_of_range_raise_as_in_eager(backend, dynamic):
    def encode(i, w):
        return torch.nn.functional.one_hot(i, num_classes=4).float() @ w

    compiled, w = minidynamo.compile(encode, backend=backend, dynamic=dynamic, fullgraph=True), torch.ones(4, 3)
    for classes in ([0, 3], [1, 2, 3], []):
        i = torch.tensor(classes, dtype=torch.int64)
        assert torch.equal(compiled(i, w), encode(i, w))
    with pytest.raises(RuntimeError, match="must be non-negative"):
        compiled(torch.tensor([-1, 1]), w)
    with pytest.raises(RuntimeError, match="must be smaller than num_classes"):
        compiled(torch.tensor([4, 1]), w)


def opens_a_window(x):
    x.as_strided((10, 2), (1, 1))
    return x + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_window_beyond_the_memory(backend, dynamic):
    inputs = [lambda n=n: torch.ones(n) for n in (3, 20, 8)]
    assert_same_as_eager(opens_a_window, *inputs, backend=backend, dynamic=dynamic)


@pytest.mark.parametrize(("size", "kept"), [(11, False), (10, True)])
def test_a_window_within_the_memory_is_dropped(size, kept):
    graph, examples = graph_of(lambda x: (opens_a_window(x),), [torch.ones(size + 1)[1:]])
    assert ("as_strided" in aot_graphs(graph, examples).forward.code) == kept
