"""Tests of the table of minidynamo/autograd/layout/dim_order.py: the listed kernels accept tensors in any dimension
order."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from minidynamo.autograd.layout.dim_order import TAKE_ANY_GRADIENT, TAKE_ANY_LAYOUT

ANY = (TAKE_ANY_LAYOUT | TAKE_ANY_GRADIENT) - {"new_empty"}  # holds anything


class Calls(TorchDispatchMode):
    """Returns different calls of the operations of the table, by overload, a dozen of each."""

    def __init__(self):
        super().__init__()
        self.found = defaultdict(dict)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function.overloadpacket.__name__ in ANY:
            facts = str(tree_map(lambda x: (x.shape, x.dtype) if isinstance(x, torch.Tensor) else x, (args, kwargs)))
            if len(self.found[function]) < 12:
                self.found[function].setdefault(facts, tree_map(copied, (args, kwargs)))
        return function(*args, **kwargs)


def copied(x):
    return x.detach().clone() if isinstance(x, torch.Tensor) else x


def others():
    """Samples missing in torch's database."""
    images, volumes = torch.randn(2, 4, 6, 6, requires_grad=True), torch.randn(2, 3, 4, 4, 4, requires_grad=True)
    yield F.interpolate(images, scale_factor=1.5, mode="bicubic", antialias=True)
    yield F.interpolate(volumes, scale_factor=1.5, mode="nearest-exact")
    yield F.channel_shuffle(images, 2)
    yield torch.native_channel_shuffle(images.detach(), 2)
    yield F.unfold(images, 3, padding=1)
    yield F.fold(F.unfold(images, 2), (6, 6), 2)
    yield torch.ops.aten._unsafe_index(images, [torch.tensor([0, 1, 1]), None, torch.tensor([0, 2, 5])])


def samples():
    """Results of torch's operators whose derivatives autograd computes with one call."""
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415 - takes ten seconds

    yield from others()
    for op in op_db:
        if op.supports_autograd and torch.float32 in op.supported_dtypes("cpu"):
            for sample in itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=True), 10):
                try:
                    yield from tree_leaves(op(sample.input, *sample.args, **sample.kwargs))
                except (RuntimeError, NotImplementedError, TypeError, ValueError):
                    continue  # some samples need features that a CPU lacks


def in_other_orders(x, is_gradient):
    """Returns tensors of the shape of `x` that are not stored by rows; the elements of gradients may overlap."""
    if x.numel() == 0 or x.dim() == 0:
        return
    outwards = [*range(x.dim())][::-1]
    yield x.permute(outwards).contiguous().permute(outwards)
    yield torch.stack([x, x], -1)[..., 0]
    if x.dim() == 4:
        yield x.contiguous(memory_format=torch.channels_last)
    if is_gradient and x.is_floating_point():
        yield from (x.narrow(dim, 0, 1).expand(x.shape) for dim in range(x.dim()))
        yield x.flatten()[0].expand(x.shape)


def results(function, values, spec):
    args, kwargs = torch.utils._pytree.tree_unflatten(values, spec)
    return [x for x in tree_leaves(function(*args, **kwargs)) if isinstance(x, torch.Tensor)]


def differences(function, values, spec):
    """Returns the positions of arguments whose order matters to a call."""
    tensors = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
    gradient_alone = function.overloadpacket.__name__ in TAKE_ANY_GRADIENT
    for place in tensors[:1] if gradient_alone else tensors:
        for given in in_other_orders(values[place], place == tensors[0]):
            by_rows = given.clone(memory_format=torch.contiguous_format)
            expected = results(function, [*values[:place], by_rows, *values[place + 1 :]], spec)
            try:
                found = results(function, [*values[:place], given, *values[place + 1 :]], spec)
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
            except (AssertionError, RuntimeError):
                yield place


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_kernels_compute_the_same_in_any_order():
    with Calls() as calls:
        for result in samples():
            if isinstance(result, torch.Tensor) and result.requires_grad:
                try:
                    result.backward(torch.randn_like(result), retain_graph=True)
                except (RuntimeError, NotImplementedError):
                    continue
    met = {function.overloadpacket.__name__ for function in calls.found}
    assert sorted(ANY - met) == []
    wrong = {
        (str(function), place)
        for function, found in calls.found.items()
        for given in found.values()
        for place in differences(function, *torch.utils._pytree.tree_flatten(given))
    }
    assert not wrong
