"""The mode in which tensors subscript tensors, as in the masks of transformers; other modes are not captured."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

import minidynamo
from minidynamo.compat import torch_function_mode_count
from minidynamo.testing import assert_same_as_eager


def index_mode():
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex  # noqa: PLC0415 (torch.compile)

    return TransformGetItemToIndex


def mask(allowed, groups):
    def allows(batch, head, query, key):
        return (query >= key) & allowed[batch, key] | (groups[batch, query] == groups[batch][key])

    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        allows = torch.vmap(allows, in_dims=dims)
    with index_mode()():
        return allows(torch.arange(2), torch.arange(1), torch.arange(5), torch.arange(5)) * 1.0


def inputs():
    return torch.rand(2, 5) > 0.3, torch.randint(0, 3, (2, 5))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_masks_made_under_vmap_are_captured(backend):
    assert_same_as_eager(mask, inputs, fullgraph=True, backend=backend)


def test_subscripts_in_the_mode_have_gradients():
    def fn(x, i):
        with index_mode()():
            y = (x[i] * x[i, 1]).sum() + x[2, i]
        return y + x[0], x[i, :1]

    arguments = lambda: (torch.randn(3, 3, requires_grad=True), torch.tensor(1))  # noqa: E731
    assert_same_as_eager(fn, arguments, fullgraph=True, backend="aot_eager")


@pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")
def test_the_mode_is_entered_again_at_a_break():
    def fn(x, i):
        with index_mode()():
            y = x[i] + x[0]
            print("in the block")
            z = x[i, i] * torch.ones(()) if torch_function_mode_count() else x
        return y, z, x[1]

    assert_same_as_eager(fn, lambda: (torch.randn(3, 3), torch.tensor(1)))
    assert torch_function_mode_count() == 0


@pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")
def test_other_modes_are_not_captured():
    class Doubling(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            return found * 2 if func is torch.sin else found

    def fn(x):
        with Doubling():
            x = torch.sin(x)
        return x + 1

    assert_same_as_eager(fn, lambda: torch.randn(3))
    with pytest.raises(minidynamo.errors.MinidynamoError, match="MD207"):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(torch.ones(1))
