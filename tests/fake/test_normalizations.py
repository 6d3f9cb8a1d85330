"""Tests of minidynamo/fake/normalizations.py: results for symbolic sizes have eager's shapes, strides and dtypes."""

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from minidynamo.fake.mode import FakeTensorMode
from minidynamo.fake.normalizations import META_FUNCTIONS

aten = torch.ops.aten
LAYOUTS = {
    "row-major": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "with gaps": lambda x: torch.cat([x, x], 3)[..., ::2],
    "repeated": lambda x: x[:, :, :1].expand(x.shape),
}
ACTIVATIONS = [op for op in META_FUNCTIONS if len(op._schema.returns) == 1 and "softmax" not in op.name()]


def _eager_and_symbolic(op, args, varying):
    """Returns the results of a call; the last dimensions of tensors of the shape of `varying` are symbolic."""
    eager = op(*[arg.clone() if isinstance(arg, torch.Tensor) and arg.dim() == 1 else arg for arg in args])
    mode, fakes = FakeTensorMode(shape_env=ShapeEnv()), {}

    def fake(arg):
        if not isinstance(arg, torch.Tensor) or arg.dim() < 2 or arg.shape[1:] != varying.shape[1:]:
            return mode.from_tensor(arg, static_shapes=True) if isinstance(arg, torch.Tensor) else arg
        dynamic = [DimDynamic.DYNAMIC if d >= 2 else DimDynamic.STATIC for d in range(arg.dim())]
        if id(arg) not in fakes:
            fakes[id(arg)] = mode.from_tensor(arg, symbolic_context=StatelessSymbolicContext(dynamic))
        return fakes[id(arg)]

    symbolic = [fake(arg) for arg in args]
    assert _takes(op, symbolic, mode)
    with mode:
        return eager, op(*symbolic)


def _takes(op, args, mode):
    with mode:
        return META_FUNCTIONS[op](op, *args) is not NotImplemented


def _facts(results):
    results = [results] if isinstance(results, torch.Tensor) else results
    return [
        None if each is None else (tuple(map(int, each.shape)), tuple(map(int, each.stride())), each.dtype)
        for each in results
    ]


def _check(op, args, varying):
    eager, symbolic = _eager_and_symbolic(op, args, varying)
    assert _facts(symbolic) == _facts(eager)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ACTIVATIONS, ids=lambda op: op._schema.name)
def test_activations(op, layout):
    x = LAYOUTS[layout](torch.randn(2, 3, 4, 6).sigmoid())
    defaults = {"alpha": 1, "scale": 1, "input_scale": 1, "is_result": False, "negative_slope": 0.1, "threshold": 20}
    defaults |= {"self_is_result": False, "min_val": -1, "max_val": 1, "beta": 1}
    arguments = [a for a in op._schema.arguments if not a.kwarg_only and not a.has_default_value()]
    _check(op, [x if str(a.type) == "Tensor" else defaults[a.name] for a in arguments], x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_softmax(layout):
    x = LAYOUTS[layout](torch.randn(2, 3, 4, 6))
    _check(aten._log_softmax.default, [x, 1, False], x)
    for op in (aten._log_softmax_backward_data.default, aten._softmax_backward_data.default):
        _check(op, [x, x, -1, torch.float32], x)


@pytest.mark.parametrize(
    ("dtype", "weight"),
    [
        (torch.float32, None),
        (torch.float32, torch.float32),
        (torch.bfloat16, None),
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("layout", ["row-major", "channels last", "transposed", "with gaps"])
def test_normalizations(layout, dtype, weight):
    x = LAYOUTS[layout](torch.randn(2, 4, 4, 6)).to(dtype)
    w = None if weight is None else torch.ones(4, dtype=weight)
    running = [torch.zeros(4, dtype=weight or dtype), torch.ones(4, dtype=weight or dtype)]
    parameters, options = [w, w], [0.1, 1e-5]
    for training in (True, False):
        _check(aten.native_batch_norm.default, [x, *parameters, *running, training, *options], x)
        _check(aten._native_batch_norm_legit.default, [x, *parameters, *running, training, *options], x)
        _check(aten._native_batch_norm_legit_functional.default, [x, *parameters, *running, training, *options], x)
        saved = aten.native_batch_norm(x, *parameters, *running, training, *options)[1:]
        _check(aten.native_batch_norm_backward.default, [x, x, w, *running, *saved, training, 1e-5, [True] * 3], x)
    _check(aten._native_batch_norm_legit.no_stats, [x, *parameters, True, *options], x)
    _check(aten._native_batch_norm_legit_no_training.default, [x, *parameters, *running, *options], x)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("layout", ["row-major", "channels last"])
def test_group_and_layer_normalization(layout, affine):
    x = LAYOUTS[layout](torch.randn(2, 4, 4, 6))
    w = torch.ones(4) if affine else None
    _check(aten.native_group_norm.default, [x, w, w, 2, 4, 24, 2, 1e-5], x)
    _, *saved = aten.native_group_norm(x, w, w, 2, 4, 24, 2, 1e-5)
    _check(aten.native_group_norm_backward.default, [x, x, *saved, w, 2, 4, 24, 2, [True, affine, affine]], x)
    last = x.movedim(1, -1)
    _check_layer_norm(last, [4], w)


def _check_layer_norm(x, shape, w):
    mode = FakeTensorMode(shape_env=ShapeEnv())
    dynamic = [DimDynamic.STATIC, DimDynamic.DYNAMIC, DimDynamic.DYNAMIC, DimDynamic.STATIC]
    fake, weight = mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dynamic)), w
    if w is not None:
        weight = mode.from_tensor(w, static_shapes=True)
    forward, backward = aten.native_layer_norm.default, aten.native_layer_norm_backward.default
    _, *saved = eager = forward(x, shape, w, w, 1e-5)
    assert _takes(forward, [fake, shape, weight, weight, 1e-5], mode)
    with mode:
        _, *fake_saved = symbolic = forward(fake, shape, weight, weight, 1e-5)
    assert _facts(symbolic) == _facts(eager)
    needed = [True, w is not None, w is not None]
    arguments = [fake, fake, shape, *fake_saved, weight, weight, needed]
    assert _takes(backward, arguments, mode)
    with mode:
        symbolic = backward(*arguments)
    assert _facts(symbolic) == _facts(backward(x, x, shape, *saved, w, w, needed))


def test_unusual_arguments_are_left_to_torch():
    x, mode = torch.randn(2, 3, 4), FakeTensorMode()
    fakes = [mode.from_tensor(each) for each in (x, x.long(), x[:1], torch.ones(2))]
    with mode:
        whole, integers, part, two = fakes
        assert META_FUNCTIONS[aten.relu.default](aten.relu.default, integers) is NotImplemented
        assert META_FUNCTIONS[aten.silu_backward.default](aten.silu_backward.default, part, whole) is NotImplemented
        op = aten.native_batch_norm.default
        assert META_FUNCTIONS[op](op, whole, two, None, None, None, True, 0.1, 1e-5) is NotImplemented
        op = aten.native_layer_norm.default
        assert META_FUNCTIONS[op](op, whole, [3], None, None, 1e-5) is NotImplemented
