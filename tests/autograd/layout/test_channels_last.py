"""Tests of minidynamo/autograd/layout/channels_last.py: channels-last images between convolutions."""

from __future__ import annotations

import copy
import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import minidynamo
from minidynamo.autograd import aot
from minidynamo.autograd.layout.channels_last import TAKE_IMAGES, lay_out_channels_last
from minidynamo.fake.mode import FakeTensorMode
from minidynamo.observe.memory_timeline import record_memory

aten = torch.ops.aten


def image(*shape):
    return torch.randn(shape or (2, 4, 6, 8))


def last(x):
    """Returns `x` in channels-last layout, also for a single channel or pixel."""
    _, channels, height, width = x.shape
    strides = (channels * height * width, 1, width * channels, channels)
    return torch.empty_strided(x.shape, strides, dtype=x.dtype).copy_(x)


def normalized(op, *more):
    return op, lambda: (image(), torch.ones(4), torch.zeros(4), torch.zeros(4), torch.ones(4), *more)


def convolution(*, k=3, stride=1, padding=1, transposed=False, groups=1, channels=4, weight=None):
    weight = weight or ((8, channels // groups, k, k) if not transposed else (channels, 8 // groups, k, k))
    return [torch.randn(weight), None, [stride] * 2, [padding] * 2, [1, 1], transposed, [0, 0], groups]


def gradients(**how):
    weight, _, *settings = convolution(**how)
    x = image(2, how.get("channels", 4), 6, 8)
    made = aten.convolution.default(x, weight, None, *settings)
    return torch.randn_like(made), x, weight, [weight.shape[0]], *settings, [True, True, False]


OPERATIONS = {
    "convolution": (aten.convolution.default, lambda: (image(), *convolution())),
    "strided": (aten.convolution.default, lambda: (image(), *convolution(stride=2))),
    "pixels": (aten.convolution.default, lambda: (image(2, 16, 6, 8), *convolution(k=1, padding=0, channels=16))),
    "groups": (aten.convolution.default, lambda: (image(), *convolution(groups=4))),
    "transposed": (aten.convolution.default, lambda: (image(), *convolution(transposed=True, stride=2))),
    "one channel": (aten.convolution.default, lambda: (image(2, 1, 6, 8), *convolution(channels=1))),
    "gradients": (aten.convolution_backward.default, lambda: gradients()),
    "strided gradients": (aten.convolution_backward.default, lambda: gradients(stride=2)),
    "pixels' gradients": (aten.convolution_backward.default, lambda: gradients(k=1, padding=0, channels=16, stride=2)),
    "groups' gradients": (aten.convolution_backward.default, lambda: gradients(groups=2)),
    "transposed gradients": (aten.convolution_backward.default, lambda: gradients(transposed=True)),
    "batch norm": normalized(aten._native_batch_norm_legit_functional.default, True, 0.1, 1e-5),
    "batch norm by its statistics": normalized(aten._native_batch_norm_legit_functional.default, False, 0.1, 1e-5),
    "inference": normalized(aten._native_batch_norm_legit_no_training.default, 0.1, 1e-5),
    "any batch norm": normalized(aten.native_batch_norm.default, False, 0.1, 1e-5),
    "batch norm's gradients": (
        aten.native_batch_norm_backward.default,
        lambda: (image(), *normalized(None)[1]()[:2], *torch.rand(4, 4), True, 1e-5, [True] * 3),
    ),
    "group norm": (
        aten.native_group_norm.default,
        lambda: (image(), torch.ones(4), torch.zeros(4), 2, 4, 48, 2, 1e-5),
    ),
    "pooling to sizes": (aten._adaptive_avg_pool2d.default, lambda: (image(), [2, 3])),
    "pooling to sizes, gradient": (aten._adaptive_avg_pool2d_backward.default, lambda: (image(2, 4, 2, 3), image())),
    "means": (aten.avg_pool2d.default, lambda: (image(), [3, 3], [2, 2], [1, 1], True, False)),
    "means' gradient": (
        aten.avg_pool2d_backward.default,
        lambda: (image(2, 4, 3, 4), image(), [2, 2], [2, 2], [0, 0], False, True, None),
    ),
    "maxima": (aten.max_pool2d_with_indices.default, lambda: (image(), [3, 3], [2, 2], [1, 1], [1, 1], True)),
    "maxima's gradient": (
        aten.max_pool2d_with_indices_backward.default,
        lambda: (
            image(2, 4, 3, 4),
            x := image(),
            [2, 2],
            [2, 2],
            [0, 0],
            [1, 1],
            False,
            aten.max_pool2d_with_indices.default(x, [2, 2], [2, 2])[1],
        ),
    ),
    "largest": (aten.amax.default, lambda: (image(), [2, 3], True)),
    "bilinear": (aten.upsample_bilinear2d.default, lambda: (image(), [7, 9], True)),
    "nearest": (aten.upsample_nearest2d.default, lambda: (image(), [12, 16])),
    "exactly nearest": (aten._upsample_nearest_exact2d.default, lambda: (image(), [11, 16])),
    "joined": (aten.cat.default, lambda: ([image(), image()], 1)),
    "a border": (aten.constant_pad_nd.default, lambda: (image(), [1, 1, 2, 0], 0.0)),
    "a sum": (aten.add.Tensor, lambda: (image(), image(2, 1, 6, 8))),
    "shuffled": (aten.pixel_shuffle.default, lambda: (image(), 2)),
    "means of channels": (aten.mean.dim, lambda: (image(), [2, 3], True)),
}


def strides(made):
    """Returns the strides of each tensor, without dimensions of size 1."""
    tensors = (value for value in tree_leaves(made) if isinstance(value, torch.Tensor))
    return [[s for n, s in zip(t.shape, t.stride()) if n != 1] for t in tensors]


def replaced(others, value):
    return others.get(id(value), value)


def predicted_by(mode, op, given):
    fakes = tree_map(lambda value: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value, given)
    with mode:
        return op(*fakes)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_layout_of_results_is_foretold_for_every_mixture_of_layouts(name):
    op, make = OPERATIONS[name]
    args = make()
    expected = tree_leaves(op(*args))
    images = [value for value in tree_leaves(args) if isinstance(value, torch.Tensor) and value.ndim == 4]
    for chosen in itertools.product((False, True), repeat=len(images)):
        turned = {id(x): last(x) for x, turn in zip(images, chosen) if turn}
        given = tree_map(partial(replaced, turned), args)
        made, predict_values = op(*given), predicted_by(FakeTensorMode(), op, given)
        assert strides(made) == strides(predict_values), chosen
        for one, other in zip(tree_leaves(made), expected):
            assert one is other is None or torch.allclose(one, other, atol=1e-5), chosen


def test_the_table_of_operations_is_tested():
    assert {op for op, _ in OPERATIONS.values()} >= TAKE_IMAGES


class Net(nn.Module):
    """Returns convolutions around `between`."""

    def __init__(self, between, channels=3, width=16):
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.third = nn.Conv2d(width, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.between = between

    def forward(self, x):
        return self.third(F.relu(self.between(self, self.second(F.relu(self.first(x))))))


def flat_product(net, x):
    rows = x.view(x.shape[0], -1)
    return (rows @ rows.t()).sum() * x


def in_place(net, x):
    x[:, 1:].mul_(2)
    return x.add_(1)


def attended(net, x):
    rows = x.flatten(2).transpose(1, 2)
    return F.scaled_dot_product_attention(rows, rows, rows).transpose(1, 2).reshape(x.shape)


def by_places(net, x):
    return x + x.as_strided((2, 1, 1, 1), (3, 1, 1, 1))


def kept_aside(net, x):
    net.seen = x
    return x * 2


def small(x):
    return F.avg_pool2d(x, 4)


def rescaled(x):
    return x.mean().sin()


BETWEEN = {
    "nothing": lambda net, x: x,
    "batch norm": lambda net, x: net.norm(x),
    "group norm": lambda net, x: F.group_norm(x, 4),
    "group norm of rows": lambda net, x: x + rescaled(F.group_norm(small(x).flatten(2), 4)),
    "group norm of turned images": lambda net, x: x + rescaled(F.group_norm(small(x).transpose(2, 3), 4)),
    "pooling and back": lambda net, x: F.interpolate(F.max_pool2d(x, 2), scale_factor=2.0) + F.avg_pool2d(x, 3, 1, 1),
    "skips": lambda net, x: torch.cat([x, x.sigmoid()], 1)[:, ::2] + x.mean((2, 3), keepdim=True),
    "a flat view": flat_product,
    "written in place": in_place,
    "dropout": lambda net, x: F.dropout(x, 0.5),
    "dropout of channels": lambda net, x: F.dropout2d(x, 0.5),
    "attention": attended,
    "by places": by_places,
    "sorted": lambda net, x: x.sort(1)[0] + x.cumsum(2),
    "kept aside": kept_aside,
    "other strides": lambda net, x: x.to(memory_format=torch.channels_last) * 2,
    "turned": lambda net, x: x.transpose(2, 3).contiguous() + x.rot90(1, (2, 3)),
}


def step(net, call, x, seed=0):
    """Outputs, gradients, and parameters and buffers of the module, with their strides."""
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    out = call(x)
    out.square().mean().backward()
    gradients = [x.grad, *(p.grad for p in net.parameters() if p.grad is not None)]
    made = [out.detach(), *gradients, *net.buffers(), *([net.seen.detach()] if hasattr(net, "seen") else [])]
    return [(value, value.stride()) for value in made]


@pytest.fixture
def laid_out(monkeypatch):
    """Records for each compiled graph whether its images are in channels-last layout."""
    seen = []

    def noting(*args):
        made = lay_out_channels_last(*args)
        seen.append(made is not None)
        return made

    monkeypatch.setattr(aot, "lay_out_channels_last", noting)
    with minidynamo.config.patch(graph_cache=False):
        yield seen


def net(between, **how):
    torch.manual_seed(0)
    return Net(between, **how)


def assert_close(made, expected):
    for (one, one_strides), (other, strides) in zip(made, expected, strict=True):
        assert one_strides == strides
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", BETWEEN)
def test_programs_around_images_equal_eager(name, laid_out):
    eager, compiled = net(BETWEEN[name]), net(BETWEEN[name])
    call, x = minidynamo.compile(compiled), image(2, 3, 16, 16)
    for seed in range(2):
        assert_close(step(compiled, call, x, seed), step(eager, eager, x, seed))
    with torch.no_grad():
        torch.manual_seed(3)
        expected = eager(x)
        torch.manual_seed(3)
        made = call(x)
    assert_close([(made, made.stride())], [(expected, expected.stride())])
    if name not in ("a flat view", "by places", "sorted", "kept aside"):  # these would copy often
        assert laid_out == [True, True]


@pytest.mark.parametrize("channels", [1, 3, 8])
def test_images_of_few_channels(channels, laid_out):
    eager, compiled = net(BETWEEN["batch norm"], channels=channels), net(BETWEEN["batch norm"], channels=channels)
    x = image(2, channels, 16, 16)
    assert_close(step(compiled, minidynamo.compile(compiled), x), step(eager, eager, x))
    assert laid_out == [True]


def test_what_lies_so_anyway(laid_out):
    eager, compiled = (net(BETWEEN["batch norm"]).to(memory_format=torch.channels_last) for _ in range(2))
    x = image(2, 3, 16, 16).to(memory_format=torch.channels_last)
    assert_close(step(compiled, minidynamo.compile(compiled), x), step(eager, eager, x))
    assert laid_out == [True]


def test_second_derivatives(laid_out):
    def penalty(call, x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        return slope.square().sum()

    eager, compiled = net(lambda net, x: x.tanh()), net(lambda net, x: x.tanh())
    x = image(2, 3, 16, 16)
    expected = torch.autograd.grad(penalty(eager, x), [*eager.parameters()], allow_unused=True)
    made = torch.autograd.grad(penalty(minidynamo.compile(compiled), x), [*compiled.parameters()], allow_unused=True)
    for one, other in zip(made, expected):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-3)
    assert True in laid_out


NOT_LAID_OUT = {
    "alone": lambda x: F.conv2d(x, torch.ones(3, 3, 3, 3), padding=1),
    "doubles": lambda x: Net(BETWEEN["nothing"]).double()(x.double()),
    "dilated": lambda x: F.conv2d(
        F.conv2d(x, torch.ones(16, 3, 3, 3), dilation=2), torch.ones(4, 16, 3, 3), dilation=2
    ),
    "few pixels": lambda x: F.conv2d(F.conv2d(x[..., :3, :3], torch.ones(512, 3, 3, 3)), torch.ones(512, 512, 1, 1)),
    "pixels skipped": lambda x: F.conv2d(F.conv2d(x, torch.ones(8, 3, 3, 3)), torch.ones(16, 8, 1, 1), stride=2),
}


@pytest.mark.parametrize("name", NOT_LAID_OUT)
def test_where_it_would_not_pay(name, laid_out):
    program, x = NOT_LAID_OUT[name], image(2, 3, 16, 16)
    torch.manual_seed(0)
    expected = program(x)
    torch.manual_seed(0)
    torch.testing.assert_close(minidynamo.compile(program)(x), expected, atol=1e-5, rtol=1e-4)
    assert laid_out and True not in laid_out


def test_gradients_of_depthwise_weights_take_memory(laid_out):
    """A step of few pixels needs no more than eager: with channels last, oneDNN copies 256 times the weight."""
    silu = nn.SiLU()
    deep = nn.Conv2d(64, 64, 3, padding=1, groups=64)
    eager = nn.Sequential(nn.Conv2d(3, 64, 1), silu, deep, silu, nn.Conv2d(64, 8, 1))
    compiled = minidynamo.compile(copy.deepcopy(eager))

    def peak(call, x):
        def run():
            eager.zero_grad(set_to_none=True), compiled.zero_grad(set_to_none=True)
            call(x).square().sum().backward()

        run()
        return record_memory(run).peak

    for size, is_laid_out in ((12, False), (64, True)):
        x = image(2, 3, size, size)
        assert peak(compiled, x) <= peak(eager, x)
        assert laid_out == [is_laid_out]
        laid_out.clear()
        minidynamo.reset(compiled)
    with torch.no_grad():
        compiled(image(2, 3, 12, 12))
    assert laid_out == [True]


def test_it_can_be_switched_off(laid_out):
    model, x = net(BETWEEN["batch norm"]), image(2, 3, 16, 16)
    call = minidynamo.compile(model, options={"channels_last": False})
    call(x)
    assert laid_out == []


def test_sizes_that_vary_stay_as_they_are(laid_out):
    eager, compiled = net(BETWEEN["batch norm"]), net(BETWEEN["batch norm"])
    call = minidynamo.compile(compiled)
    for batch in (2, 3, 5):
        x = image(batch, 3, 16, 16)
        assert_close(step(compiled, call, x), step(eager, eager, x))
    assert laid_out == [True, False]


def test_what_forward_keeps_lies_with_channels_last_and_is_no_larger():
    x = image(8, 3, 16, 16)

    def kept(**options):
        model = minidynamo.compile(net(BETWEEN["batch norm"]), options=options)
        model(x).sum().backward()
        return minidynamo.saved(model).bytes

    assert kept() == kept(channels_last=False)
