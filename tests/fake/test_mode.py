"""Strides of results on tensors without data are those of eager, for arguments laid out in any way."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map_only

import minidynamo
from minidynamo import compat
from minidynamo.fake.mode import COMPOSITES, RULES, FakeTensorMode
from minidynamo.testing import assert_same_as_eager

aten = torch.ops.aten
BINARY = [
    aten.complex.default,
    aten.copysign.Tensor,
    aten.div.Tensor_mode,
    aten.floor_divide.default,
    aten.heaviside.default,
    aten.logaddexp.default,
    aten.logaddexp2.default,
    aten.logical_and.default,
    aten.logical_or.default,
    aten.logical_xor.default,
    aten.logit_backward.default,
    aten.special_xlog1py.default,
    aten.xlogy.Tensor,
]

GRADIENTS = {
    aten.elu_backward.default: lambda g, x: (g, 1.0, 1.0, 1.0, False, x),
    aten.hardshrink_backward.default: lambda g, x: (g, x, 0.5),
    aten.hardsigmoid_backward.default: lambda g, x: (g, x),
    aten.hardswish_backward.default: lambda g, x: (g, x),
    aten.hardtanh_backward.default: lambda g, x: (g, x, -1.0, 1.0),
    aten.huber_loss_backward.default: lambda g, x: (g, x, x, 0, 1.0),
    aten.leaky_relu_backward.default: lambda g, x: (g, x, 0.1, False),
    aten.log_sigmoid_backward.default: lambda g, x: (g, x, x.new_empty(x.shape)),
    aten.mse_loss_backward.default: lambda g, x: (g, x, x, 0),
    aten.smooth_l1_loss_backward.default: lambda g, x: (g, x, x, 0, 1.0),
    aten.softplus_backward.default: lambda g, x: (g, x, 1.0, 20.0),
    aten.threshold_backward.default: lambda g, x: (g, x, 0.1),
}


def laid_out(shape, order):
    """Returns a dense tensor whose dimensions, from the innermost on, are `order`."""
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim], step = step, step * max(shape[dim], 1)
    return torch.empty_strided(shape, strides).fill_(0.5)


def compare_with_eager(op, *args, **kwargs):
    """Compares the strides of the first result, without dimensions of one element."""
    mode = FakeTensorMode()
    with mode:
        predicted = op(*tree_map_only(torch.Tensor, mode.from_tensor, args), **kwargs)
    pairs = [made if isinstance(made, tuple) else (made,) for made in (op(*args, **kwargs), predicted)]
    for real, fake in zip(*pairs, strict=True):
        assert (real.shape, real.dtype) == (fake.shape, fake.dtype)
    return [[(n, s) for n, s in zip(made[0].shape, made[0].stride()) if n > 1] for made in pairs]


@pytest.mark.parametrize("op", BINARY, ids=str)
def test_two_arguments_decide_in_eagers_order(op):
    chosen = random.Random(str(op))
    kwargs = {"rounding_mode": "floor"} if op is aten.div.Tensor_mode else {}
    for _ in range(15):
        rank = chosen.randint(2, 4)
        shape = [chosen.choice((1, 2, 3)) for _ in range(rank)]
        pair = []
        for _ in range(2):
            own = [n if chosen.random() < 0.8 else 1 for n in shape][chosen.choice((0, 0, 0, 1, rank)) :]
            made = laid_out(own, chosen.sample(range(len(own)), len(own)))
            pair.append(made if chosen.random() < 0.8 else made.expand(shape))
        real, predicted = compare_with_eager(op, *pair, **kwargs)
        assert real == predicted, [(t.shape, t.stride()) for t in pair]


@pytest.mark.parametrize("op", GRADIENTS, ids=str)
def test_gradients_of_activations_and_losses_lie_as_in_eager(op):
    rows, last = torch.rand(2, 3, 4, 5), torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    ways = [
        rows,
        rows[..., :1].expand(2, 3, 4, 5),
        rows[:1, :1, :1, :1].expand(2, 3, 4, 5),
        last,
        rows.mT.contiguous().mT,
    ]
    ways.append(torch.rand(2, 4, 3, 10)[..., ::2].transpose(1, 2))
    for gradient, x in itertools.product(ways, repeat=2):
        real, predicted = compare_with_eager(op, *GRADIENTS[op](gradient, x))
        assert real == predicted, [gradient.stride(), x.stride()]


@pytest.mark.skipif(compat.is_composite(aten.ldexp.Tensor), reason="it consists of other operations in this torch")
def test_a_product_with_a_power_of_two_has_eagers_dtype():
    dtypes = (torch.bool, torch.int32, torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for dtype, other in itertools.product(dtypes, repeat=2):
        if other is torch.bool and dtype.is_floating_point:  # torch has no kernel for the pair
            continue
        for shape, other_shape in itertools.product([(), (2, 3)], repeat=2):
            given = torch.ones(shape, dtype=dtype), torch.ones(other_shape, dtype=other)
            compare_with_eager(aten.ldexp.Tensor, *given)  # compares the dtypes


@pytest.mark.parametrize("nonlinear", [F.softplus, F.elu, F.hardswish, F.hardsigmoid, F.relu6])
def test_parts_of_a_linear_layer_have_eagers_gradient(nonlinear):
    # `torch.cat` joins the gradients of the parts, in their layout.
    def gates(x, weight):
        one, other = torch.split((x @ weight).view(2, 8, 2, 4), [2, 2], dim=3)
        one, other = one.reshape(2, 8, 4).sigmoid(), nonlinear(other.reshape(2, 8, 4))
        return one.transpose(1, 2).contiguous() * other.transpose(1, 2).contiguous().cumsum(-1)

    def make():
        return torch.randn(2, 8, 16, requires_grad=True), torch.randn(16, 8, requires_grad=True)

    assert_same_as_eager(gates, make, backend="aot_eager", graphs=1)


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.bfloat16), (torch.bool, torch.float16)], ids=str)
@pytest.mark.parametrize("op", [aten.add.Tensor, aten.fmod.Tensor, aten.lt.Tensor, aten.masked_fill.Tensor], ids=str)
def test_what_repeats_has_a_say_where_eager_copies_it(op, dtypes):
    one, other = (laid_out((3, 4), (0, 1)).to(dtype) for dtype in dtypes)
    rest = (torch.tensor(1.0),) if op is aten.masked_fill.Tensor else ()
    for pair in ((one[:1].expand(3, 4), other), (one, other[:, :1].expand(3, 4))):
        pair = (pair[1], pair[0].bool()) if rest else pair
        real, predicted = compare_with_eager(op, *pair, *rest)
        assert real == predicted


IMAGES = laid_out((2, 3, 2, 2), (0, 1, 2, 3))
LAST = torch.rand(2, 3, 2, 2).to(memory_format=torch.channels_last)
STATISTICS = torch.zeros(3), torch.ones(3)
MATRIX = laid_out((3, 4), (0, 1))
NORMAL = (IMAGES, torch.ones(3), torch.zeros(3), *STATISTICS)
OTHERS = {
    aten.angle.default: lambda: (torch.complex(MATRIX, MATRIX),),
    aten.binary_cross_entropy.default: lambda: (MATRIX, laid_out((3, 4), (1, 0)), None, 0),
    aten.binary_cross_entropy_backward.default: lambda: (MATRIX, laid_out((3, 4), (1, 0)), MATRIX, None, 0),
    aten._log_softmax_backward_data.default: lambda: (MATRIX, MATRIX, 1, torch.float32),
    aten.channel_shuffle.default: lambda: (torch.rand(2, 4, 2, 3).to(memory_format=torch.channels_last), 2),
    aten.native_channel_shuffle.default: lambda: (torch.rand(2, 4, 2, 3).to(memory_format=torch.channels_last), 2),
    aten.native_group_norm_backward.default: lambda: (
        *(LAST[:, :2], LAST[:, :2], torch.zeros(2, 1), torch.ones(2, 1), torch.ones(2), 2, 2, 4, 1, [True] * 3),
    ),
    aten.native_layer_norm_backward.default: lambda: (
        *(MATRIX, MATRIX, [4], torch.zeros(3, 1), torch.ones(3, 1), torch.ones(4), torch.ones(4), [True] * 3),
    ),
    aten.log_sigmoid_forward.default: lambda: (MATRIX,),
    aten.max_unpool2d.default: lambda: (LAST, torch.zeros(2, 3, 2, 2, dtype=torch.int64), [4, 4]),
    aten.native_batch_norm.default: lambda: (IMAGES, None, None, None, None, True, 0.1, 1e-5),
    aten._batch_norm_no_update.default: lambda: (*NORMAL, 0.1, 1e-5),
    aten._batch_norm_with_update.default: lambda: (*NORMAL, 0.1, 1e-5),
    aten._batch_norm_with_update_functional.default: lambda: (*NORMAL, 0.1, 1e-5),
    aten._native_batch_norm_legit.default: lambda: (IMAGES, None, None, *STATISTICS, True, 0.1, 1e-5),
    aten._native_batch_norm_legit.no_stats: lambda: (IMAGES, None, None, True, 0.1, 1e-5),
    aten._native_batch_norm_legit_functional.default: lambda: (IMAGES, None, None, *STATISTICS, True, 0.1, 1e-5),
    aten._native_batch_norm_legit_no_training.default: lambda: (IMAGES, None, None, *STATISTICS, 0.1, 1e-5),
    aten.native_batch_norm_backward.default: lambda: (
        *(LAST, IMAGES, torch.ones(3), None, None, torch.zeros(3), torch.ones(3)),
        *(True, 1e-5, [True] * 3),
    ),
    aten.native_dropout_backward.default: lambda: (MATRIX, MATRIX > 0, 2.0),
    aten.huber_loss.default: lambda: (MATRIX[:1].expand(3, 4), laid_out((3, 4), (1, 0)), 0),
    aten.index.Tensor: lambda: (MATRIX[0], [laid_out((3, 2), (0, 1)).long()]),
    aten.isin.Tensor_Scalar: lambda: (MATRIX, 1),
    aten.isin.Tensor_Tensor: lambda: (MATRIX, MATRIX[0]),
    aten.ldexp.Tensor: lambda: (MATRIX[:, :1], MATRIX.expand(3, 4)),
    aten.max_pool3d_with_indices.default: lambda: (laid_out((2, 3, 4, 4), (0, 3, 2, 1)), [2, 2, 2]),
    aten.nll_loss2d_forward.default: lambda: (IMAGES, torch.zeros(2, 2, 2, dtype=torch.int64).mT, None, 0, -100),
    aten.normal.Tensor_Tensor: lambda: (MATRIX, MATRIX),
    aten.pow.Scalar: lambda: (2.0, MATRIX),
    aten.roll.default: lambda: (LAST, [1], [3]),
    aten.rrelu_with_noise.default: lambda: (MATRIX, torch.empty(3, 4)),
    aten.threshold_backward.default: lambda: (MATRIX, laid_out((3, 4), (1, 0)), 2),
}


@pytest.mark.parametrize("reduction", [0, 1])
def test_a_huber_loss_has_the_dtype_of_its_first_argument(reduction):
    x, y = laid_out((2, 3), (0, 1)), laid_out((2, 3), (1, 0)).double()
    for pair in ((x, y), (y, x), (x.bfloat16(), x)):
        eager, predicted = compare_with_eager(aten.huber_loss.default, *pair, reduction)
        assert eager == predicted


def test_bools_to_the_power_of_a_bool_are_bools():
    for exponent in (True, False, 1):
        eager, predicted = compare_with_eager(aten.pow.Tensor_Scalar, MATRIX > 0, exponent)
        assert eager == predicted


def test_every_other_rule_says_what_eager_does():
    assert {*OTHERS, *BINARY, *GRADIENTS} == {*RULES}
    for op, arguments in OTHERS.items():
        real, predicted = compare_with_eager(op, *arguments())
        assert real == predicted, op
    others = [
        (aten.native_batch_norm.default, (LAST, None, None, None, None, True, 0.1, 1e-5)),
        (aten.ldexp.Tensor, (torch.ones(()), MATRIX.int())),
        (aten.ldexp.Tensor, (MATRIX[:, :1].double(), MATRIX)),
        (aten.roll.default, (LAST, [1], [])),
        (aten.max_pool3d_with_indices.default, (torch.rand(2, 3, 4, 4), [2, 2, 2])),
    ]
    for op, given in others:
        real, predicted = compare_with_eager(op, *given)
        assert real == predicted, op


def test_what_is_read_through_indices_lies_as_in_eager():
    chosen = random.Random(0)

    def drawn(rank):
        return laid_out([chosen.choice((1, 2, 3)) for _ in range(rank)], chosen.sample(range(rank), rank))

    for _ in range(60):
        x = drawn(chosen.randint(1, 4))
        shape, given = (
            drawn(chosen.randint(1, 3)).shape,
            sorted(chosen.sample(range(x.dim()), chosen.randint(1, x.dim()))),
        )
        indices = [None] * x.dim()
        for d in given:
            own = [n if chosen.random() < 0.8 else 1 for n in shape][chosen.randrange(len(shape)) :]
            indices[d] = laid_out(own, chosen.sample(range(len(own)), len(own))).long()
        real, predicted = compare_with_eager(aten.index.Tensor, x, indices)
        assert real == predicted, [(t.shape, t.stride()) for t in (x, *indices) if t is not None]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_results_have_eagers_strides_and_programs_see_them(backend):
    def strides(x, y, images):
        signed, quotient, both = torch.copysign(x, y), torch.floor_divide(x, y), torch.logical_and(x, y)
        sigmoid, normal = F.logsigmoid(x), F.batch_norm(images, None, None, training=True)
        loss = F.nll_loss(images, torch.zeros(2, 2, 2, dtype=torch.int64).mT, reduction="none")
        made = [signed, quotient, both, sigmoid, normal, loss, 2.0**x, images.roll(1, -1), torch.ldexp(x, y)]
        return made, [t.stride() for t in made], [t.is_contiguous() for t in made]

    x, y = laid_out((3, 1, 4), (0, 1, 2)), laid_out((2, 4), (0, 1))
    made, *seen = minidynamo.compile(strides, backend=backend)(x, y, IMAGES)
    expected, *seen_by_eager = strides(x, y, IMAGES)
    assert [t.stride() for t in made] == [t.stride() for t in expected]
    assert seen == seen_by_eager


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_running_statistics_of_half_types(backend, dtype):
    images = IMAGES.add(torch.arange(3.0).view(3, 1, 1)).to(dtype)
    real, predicted = compare_with_eager(
        aten._native_batch_norm_legit_functional.default,
        *(images, None, None, *(t.to(dtype) for t in STATISTICS), True, 0.1, 1e-5),
    )
    assert real == predicted
    expected, made = ([t.to(dtype, copy=True) for t in STATISTICS] for _ in range(2))
    result = F.batch_norm(images, *expected, training=True)
    found = minidynamo.compile(F.batch_norm, backend=backend)(images, *made, training=True)
    assert found.stride() == result.stride()
    torch.testing.assert_close([found, *made], [result, *expected], rtol=0, atol=0)
    weights = torch.ones(3, dtype=dtype), torch.zeros(3, dtype=dtype)

    def updating(images, *given):
        return aten._batch_norm_with_update(images, *weights, *given, 0.1, 1e-5)[0]

    result = updating(images, *expected)
    found = minidynamo.compile(updating, backend=backend)(images, *made)
    assert found.stride() == result.stride()
    torch.testing.assert_close([found, *made], [result, *expected], rtol=0, atol=0)


def test_what_consists_of_others_is_taken_apart_as_in_eager():
    """In inference mode, torch does not decompose the operation, and has rules that return copies."""
    with FakeTensorMode(), torch.inference_mode():
        x = torch.ones(3)
        assert F.dropout(x, 0.5, training=False) is x
    assert COMPOSITES[aten.dropout.default](x, 0.5, False) is x


def test_what_has_a_part_replaced_is_laid_out_as_in_eager():
    wholes = [torch.ones(()).expand(3, 3), torch.ones(3, 1).expand(3, 3), torch.ones(1, 3, 2).mT.expand(3, 2, 3)]
    for whole in (*wholes, torch.ones(()).expand(3), laid_out((3, 4), (0, 1)), laid_out((2, 3, 4), (1, 2, 0))):
        given = [
            (aten.select_scatter.default, (whole, whole[0].clone(), 0, 0)),
            (aten.slice_scatter.default, (whole, whole[:1].clone(), 0, 0, 1)),
        ]
        if whole.dim() > 1:
            given.append((aten.diagonal_scatter.default, (whole, whole.diagonal().clone())))
        for op, arguments in given:
            real, predicted = compare_with_eager(op, *arguments)
            assert real == predicted, (op, whole.shape, whole.stride())


def test_sizes_that_hang_on_data_are_not_foretold():
    with FakeTensorMode(), pytest.raises(compat.DynamicOutputShape):
        aten._unique(torch.arange(3))


REPLACED = {
    "no such place to read": lambda x: x.select(-1, -5),
    "no such place": lambda x: x.select_scatter(x.new_ones(4), 0, 7),
    "a place of another size": lambda x: x.select_scatter(x.new_ones(2), 0, 1),
    "no such rows": lambda x: x.slice_scatter(x.new_ones(1, 4), 0, 7, 8),
    "rows of another size": lambda x: x.slice_scatter(x.new_ones(2, 3), 0, 0, None, 2),
    "no such dimension": lambda x: x.softmax(2),
    "no such dimension to sort": lambda x: x.sort(-3),
    "no dimension but one": lambda x: x.sum().softmax(1),
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_part_that_does_not_fit_raises_the_error_of_eager(name):
    function = REPLACED[name]
    with pytest.raises((IndexError, RuntimeError)) as expected:
        function(torch.zeros(3, 4))
    with FakeTensorMode(), pytest.raises(expected.type) as raised:
        function(torch.zeros(3, 4))
    assert str(raised.value) == str(expected.value)


PARTS = {
    "next to each other": lambda b: (b[:6], b[1:7]),
    "one tensor": lambda b: (b[:6], b[:6]),
    "transposed": lambda b: (b[:9].view(3, 3), b[:9].view(3, 3).t()),
    "apart": lambda b: (b[:6], b[6:12]),
    "interleaved": lambda b: (b[::2], b[1::2]),
    "expanded": lambda b: (b[:6], b[2:3].expand(6)),
    "with gaps": lambda b: (b[:12].view(3, 4)[:, :2], b[:12].view(3, 4)[:, 1:3]),
    "one element": lambda b: (b[:6], b[3:4]),
    "none": lambda b: (b[:0], b[:0]),
}
WRITING = {
    **{
        name: getattr(aten, name)
        for name in ["copy_", "add_", "mul_", "div_", "pow_", "atan2_", "ge_", "logical_and_", "clamp_min_"]
    },
    "lerp_": lambda a, b: aten.lerp_(a, b, 0.5),
    "addcmul_": lambda a, b: aten.addcmul_(a, b, b),
    "masked_fill_": lambda a, b: aten.masked_fill_(a, b > 0, b.flatten()[:1].sum()),
    "ldexp_": aten.ldexp_,
}


def refused(op, parts):
    try:
        op(*parts)
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", WRITING)
def test_writes_to_a_part_of_what_is_read_are_refused_as_in_eager(name, parts):
    mode = FakeTensorMode()
    expected = refused(WRITING[name], PARTS[parts](torch.ones(12)))
    with mode:
        assert refused(WRITING[name], PARTS[parts](mode.from_tensor(torch.ones(12)))) == expected


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_a_program_did_before_such_a_write_is_done(backend):
    def program(x, buffer, seen):
        seen[-1:] = [9, 1]
        buffer.zero_()
        x[:2] = x[1:]

    def run(call):
        buffer, seen = torch.ones(3), [1, 2]
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            call(torch.arange(3.0), buffer, seen)
        return buffer.tolist(), seen

    assert run(minidynamo.compile(program, backend=backend)) == run(program)
