"""Tests of minidynamo/autograd/segments.py: graphs with cond, in parts. Programs: end_to_end/torch/test_cond.py."""

import pytest
import torch

import minidynamo
from minidynamo import cond
from minidynamo.testing import AotEagerAndRecordGraphs
from tests.autograd.programs import targets


def compiled(fn):
    counter = AotEagerAndRecordGraphs()
    return minidynamo.compile(fn, backend=counter, fullgraph=True), counter


def test_each_stretch_and_each_branch_is_a_graph_of_its_own():
    def f(x):
        y = x.sin()
        z = cond(y.sum() > 0, lambda: y.cos(), lambda: y.exp())
        return z * y

    call, counter = compiled(f)
    call(torch.randn(3))
    assert counter.frame_count == 1
    assert [targets(graph) for graph in counter.fw_graphs] == [
        ["aten.sin.default", "aten.sum.default", "aten.gt.Scalar"],
        ["aten.cos.default"],
        ["aten.exp.default"],
        ["aten.mul.Tensor"],
    ]


def test_only_the_branch_that_ran_is_differentiated():
    w = torch.ones(3, requires_grad=True)

    def f(x):
        return cond(x.sum() > 0, lambda: (x * w).tanh(), lambda: x.exp())

    call, counter = compiled(f)
    call(torch.ones(3)).sum().backward()
    assert len(counter.bw_graphs) == 1 and torch.equal(w.grad, 1 - torch.ones(3).tanh() ** 2)
    assert not call(-torch.ones(3)).requires_grad


@pytest.mark.parametrize("up", [True, False])
def test_settings_are_switched_around_the_parts(up):
    w = torch.ones(4, 4, requires_grad=True)

    def f(x):
        with torch.autocast("cpu"):
            y = x @ w
            y = cond(x.sum() > 0, lambda: y @ w, lambda: y @ w.t())
            y = y @ w
        with torch.no_grad():
            z = cond(x.sum() > 0, lambda: x * w, lambda: x - w)
        return y, z, torch.is_grad_enabled(), y @ w.to(y.dtype)

    x = torch.ones(4, 4) * (1 if up else -1)
    expected, found = f(x), compiled(f)[0](x)
    assert found[2] and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    for a, b in zip(expected, found):
        if isinstance(a, torch.Tensor):
            assert torch.equal(a, b) and a.dtype is b.dtype and a.requires_grad == b.requires_grad


def test_an_error_leaves_the_settings_as_they_were():
    @torch.library.custom_op("minidynamo_tests::refuse_in_segment", mutates_args=())
    def refuse(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not today")

    refuse.register_fake(torch.empty_like)

    def f(x):
        with torch.no_grad():
            return cond(x.sum() > 0, lambda: torch.ops.minidynamo_tests.refuse_in_segment(x), lambda: x + 1)

    call, _ = compiled(f)
    call(-torch.ones(2))
    with pytest.raises(ValueError, match="not today"):
        call(torch.ones(2))
    assert torch.is_grad_enabled()


def test_lists_are_taken_apart_and_emptied():
    def f(xs):
        y = cond(xs[0].sum() > 0, lambda: xs[0] + xs[1], lambda: xs[1] * 2)
        return y + xs.pop()

    call, _ = compiled(f)
    for k in (1, -1):
        xs, ys = ([k * torch.ones(2), torch.ones(2)] for _ in range(2))
        assert torch.equal(f(xs), call(ys)) and len(ys) == 1


def test_writes_between_the_parts_are_seen():
    def f(x, pred):
        y = x * 2
        view = y[:2]
        z = cond(pred, lambda: y + 1, lambda: y - 1)
        view.add_(10)
        return cond(pred, lambda: y + z, lambda: y * z), y, view

    call, _ = compiled(f)
    for pred in (torch.tensor(True), torch.tensor(False)):
        a, b = (torch.arange(4.0, requires_grad=True) for _ in range(2))
        expected, found = f(a, pred), call(b, pred)
        assert all(map(torch.equal, expected, found))
        assert found[2].data_ptr() == found[1].data_ptr()
        expected[0].sum().backward(), found[0].sum().backward()
        assert torch.equal(a.grad, b.grad)


def test_second_derivatives_are_those_for_what_a_part_was_given():
    """The program writes to the argument later, and the argument then requires grad."""

    def f(a, x):
        y = x * 1
        z = cond(y.sum() > 0, lambda: y.sin(), lambda: y.cos())
        a.mul_(y)
        return z.exp(), a

    def second(fn):
        x = torch.full((3,), 0.5, requires_grad=True)
        (gradient,) = torch.autograd.grad(fn(torch.ones(3), x)[0].sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.sum(), x)[0]

    torch.testing.assert_close(second(compiled(f)[0]), second(f))
