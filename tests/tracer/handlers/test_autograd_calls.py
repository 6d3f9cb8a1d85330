"""Calls of autograd in a program become nodes that call autograd, if the node may run once."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.graph.autograd_calls import BackwardState, replace_data, reserve_hook
from minidynamo.testing import assert_same_as_eager
from minidynamo.tracer.records.traced_frame import Break
from tests.tracer.capturing import capture, targets


def test_replaced_data_counts_as_written():
    def program(x, y):
        x.data = y
        return x.shape

    traced = capture(program, torch.ones(2), torch.ones(3))
    (node,) = (node for node in traced.graph.graph.nodes if node.target is replace_data)
    shapes = {given.source.display(): given.node.meta["example_value"].shape for given in traced.inputs}
    assert node.meta["mutates"] and shapes == {"x": (2,), "y": (3,)}


def test_the_state_is_the_last_input_and_has_the_handle():
    def program(x, y):
        handle = x.register_hook(lambda g: g)
        return handle, y.register_hook(lambda g: g * 2)

    traced = capture(program, *(torch.ones(2, requires_grad=True) for _ in range(2)))
    assert targets(traced) == [reserve_hook, reserve_hook] and not traced.outputs
    assert [given.source.display() for given in traced.inputs] == ["x", "y", "backward_state"]
    assert traced.inputs[-1].node.meta["example_value"] == BackwardState()


def gradient_behind_a_hook(x):
    x.register_hook(lambda g: g * 2)
    return torch.autograd.grad((x * x).sum(), x)


def unused(x):
    return torch.autograd.grad((x * x).sum(), [x, x.detach().requires_grad_()], allow_unused=True)


def zeros_for_unused(x):
    return torch.autograd.grad((x * x).sum(), [x], materialize_grads=True)


def in_a_checkpoint(x):
    return checkpoint(lambda y: torch.nn.Parameter(y * 2) * y, x, use_reentrant=False)


def hook_in_a_checkpoint(x):
    def function(y):
        y.register_hook(lambda g: g)
        return y * 2

    return checkpoint(function, x, use_reentrant=False)


def written_to(x):
    y = x * 2
    y.mul_(2)
    return torch.autograd.grad((y * y).sum(), y)


def data_in_a_checkpoint(x):
    def function(y):
        y.data = y * 2
        return y * 2

    return checkpoint(function, x, use_reentrant=False)


def data_on_another_device(x):
    x.data = torch.ones(2, device="meta")


def attribute_of_a_handle(x):
    return x.register_hook(lambda g: g).id


def a_view_from_inside_of_no_grad_that_was_written(x):
    with torch.no_grad():
        y = x.view_as(x)
        y.mul_(2)
    y.requires_grad_(False)


@pytest.mark.parametrize(
    "program",
    [
        gradient_behind_a_hook,
        a_view_from_inside_of_no_grad_that_was_written,
        unused,
        zeros_for_unused,
        in_a_checkpoint,
        hook_in_a_checkpoint,
        written_to,
        data_in_a_checkpoint,
        data_on_another_device,
        attribute_of_a_handle,
    ],
)
def test_what_ends_the_graph(program):
    traced = capture(program, torch.ones(2, requires_grad=True))
    assert isinstance(traced.exit, Break)


def gradients_through_an_argument(y, x):
    return torch.autograd.grad(y * 2, x)


def gradients_of_a_stranger(y, x):
    return torch.autograd.grad((x * x).sum(), torch.ones(2, requires_grad=True))


@pytest.mark.parametrize(
    ("program", "computed", "code"),
    [
        (gradients_through_an_argument, True, "MD212"),
        (gradients_through_an_argument, False, "MD202"),
        (gradients_of_a_stranger, False, "MD202"),
    ],
)
def test_no_error_is_foretold_where_autograd_knows_more(program, computed, code):
    """For a computed argument, only the real tensor knows its history."""
    x = torch.ones(2, requires_grad=True)
    exit = capture(program, (x * x).sum() if computed else torch.tensor(1.0, requires_grad=True), x).exit
    assert isinstance(exit, Break) and exit.diagnostic.code == code


@pytest.mark.filterwarnings("ignore:.*jit.script:DeprecationWarning")  # of torch's dual levels
def test_a_tensor_outside_of_dual_levels_has_no_tangent():
    forward_ad = torch.autograd.forward_ad

    def doubled_without_tangent(x):
        primal, tangent = forward_ad.unpack_dual(x)
        return primal * 2 if tangent is None else x + tangent

    assert_same_as_eager(doubled_without_tangent, lambda: torch.ones(2), fullgraph=True, calls=2)
    compiled = minidynamo.compile(doubled_without_tangent, backend="eager")
    compiled(torch.ones(2))
    with forward_ad.dual_level(), pytest.warns(MinidynamoNotice, match="MD303"):
        assert compiled(forward_ad.make_dual(torch.ones(2), torch.full((2,), 4.0))).tolist() == [5, 5]
