"""Tests of minidynamo/frontend/cond.py: calls outside of compiled code. Programs: end_to_end/torch/test_cond.py."""

import functools
import threading

import pytest
import torch

import minidynamo
from minidynamo.errors import InvalidCond, Unsupported
from minidynamo.frontend.cond import cond
from minidynamo.testing import no_recompile

TRUE, FALSE = torch.tensor(True), torch.tensor(False)
x = torch.ones(3)


@pytest.mark.parametrize("pred", [True, 1, 0.5])
def test_numbers_choose_and_compile_nothing(pred):
    kept = []
    with no_recompile():
        assert cond(pred, kept.append, torch.cos, (x,)) is None
        assert cond(not pred, kept.append, lambda x: x, (x,)) is x
    assert kept == [x]


def test_nothing_is_compiled_when_compiling_is_disabled():
    kept = []
    with minidynamo.config.patch(disable=True), no_recompile():
        cond(TRUE, kept.append, torch.cos, (x,))
    assert kept == [x]


class Layer(torch.nn.Module):
    def forward(self, x):
        return x * 2

    def half(self, x):
        return x / 2


@pytest.mark.parametrize(
    "branch",
    [
        torch.sin,
        lambda x: x + 1,
        functools.partial(torch.add, torch.ones(3)),
        functools.partial(lambda a, b: a - b, torch.ones(3)),
        Layer(),
        Layer().half,
        minidynamo.compile(lambda x: x * 3, backend="eager"),
    ],
)
def test_every_kind_of_function(branch):
    for _ in range(2):
        assert torch.equal(cond(TRUE, branch, torch.cos, (x,)), branch(x))
        assert torch.equal(cond(FALSE, branch, torch.cos, (x,)), x.cos())
    with no_recompile():
        cond(TRUE, branch, torch.cos, (x,))


def test_refusals_are_repeated():
    for _ in range(2):
        with pytest.raises(InvalidCond, match="MD109"):
            cond(None, torch.sin, torch.cos, (x,))
        with pytest.raises(Unsupported, match="MD224"):
            cond(TRUE, torch.sin, lambda x: print(x), (x,))


def test_threads():
    found = []

    def work(k):
        found.append(cond(torch.tensor(k % 2 == 0), lambda x: x + 1, lambda x: x - 1, (x,)).sum().item())

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0] * 4 + [6] * 4
