"""Tests of minidynamo/tracer/graph/fake_tensors.py: fake copies of real tensors, and calls on fake tensors."""

import pytest
import torch

from minidynamo.guards.profile import FrameProfile
from minidynamo.guards.shapes import Shapes
from minidynamo.guards.source import Local
from minidynamo.tracer.graph.fake_tensors import (
    CallFailed,
    FakeTensors,
    VersionCounters,
    has_symbols,
    same_numbers,
    tensors_in,
    without_symbols,
)


def fakes_of(*tensors, dynamic=False):
    shapes = Shapes(FrameProfile(dynamic=dynamic), lambda: None)
    fakes = FakeTensors(shapes)
    return [fakes, *(fakes.of_real(t, shapes.layout(Local(f"x{k}"), t)) for k, t in enumerate(tensors))]


def test_operations_on_symbolic_sizes_give_symbols():
    fakes, x = fakes_of(torch.ones(3, 4), dynamic=True)
    made = fakes.run(torch.sum, [x, 1], {})
    assert has_symbols(made.shape) and same_numbers(made.shape, x.shape[:1])
    assert without_symbols(made.shape) == (3,) and without_symbols([True, (made.shape[0],)]) == [True, (3,)]
    assert not same_numbers(x.shape[:1], x.shape[1:])


def test_a_method_is_called_on_its_first_argument():
    fakes, x = fakes_of(torch.ones(2, 3))
    assert fakes.run("sum", [x], {"dim": 0}).shape == (3,)
    with pytest.raises(CallFailed) as caught:
        fakes.run("view", [x, 5], {})
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_writes_are_seen_through_nested_arguments():
    fakes, a, b, c = fakes_of(torch.ones(2), torch.ones(2), torch.ones(2))
    versions = VersionCounters(([a], {"k": (b,)}, slice(c)))
    fakes.run(torch.add, [a, b], {"out": c})
    fakes.run("mul_", [a, 2], {})
    assert [any(one is written for one in versions.written()) for written in (a, b, c)] == [True, False, True]


def test_of_inference_tensors_writes_are_not_counted():
    with torch.inference_mode():
        _, x = fakes_of(torch.ones(2))
    assert len(VersionCounters([x]).written()) == 1


@pytest.mark.parametrize("requires_grad", [False, True])
def test_computed_ones_have_a_history_and_parts_are_leaves(requires_grad):
    fakes, x = fakes_of(torch.ones(2, 3))
    computed, part = fakes.result_like(x, requires_grad), fakes.leaf_like(x, 0, requires_grad)
    assert (computed.shape, computed.requires_grad, computed.grad_fn is not None) == (
        (2, 3),
        requires_grad,
        requires_grad,
    )
    assert (part.shape, part.requires_grad, part.is_leaf) == ((3,), requires_grad, True)
    assert fakes.leaf_like(x, None, requires_grad).shape == (2, 3)


def test_integers_never_require_grad():
    fakes, x = fakes_of(torch.ones(2, dtype=torch.int64))
    assert not fakes.leaf_like(x, None, True).requires_grad


def test_tensors_are_found_in_order():
    a, b, c = (torch.ones(k) for k in range(3))
    assert [t.numel() for t in tensors_in([a, {"x": (b,)}, slice(None, c), 3, "text"])] == [0, 1, 2]
