"""torch's functions in all their forms: captured in one graph, with eager's results.

The slow test takes functions from torch's own database of operators; the remaining tests are a sample.
"""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.core.events import on_event
from minidynamo.observe.comparison import assert_equal_observations, observe
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


def matrix():
    return torch.randn(3, 4)


# Operators with uninitialized results, and operators that need values, with the reason given at the break.
UNINITIALIZED = ("empty", "new_empty", "empty_like", "empty_strided", "empty_permuted", "new_empty_strided")
EXPECTED_BREAKS = {
    "MD215": "the size or kind of the result depends on values",
    "MD216": "fake tensors do not know the operator",
    "MD202": "eager refuses the sample's in-place form",
}
# Wrapped by code of the database itself that cannot be captured, or not tensor functions.
NOT_CAPTURED = (
    *("item", "equal", "resize_", "resize_as_", "__rsub__", "sparse.", "masked.", "to_sparse", "torch._scaled_mm"),
    *("cauchy", "exponential", "geometric", "log_normal", "uniform", "normal", "bernoulli", "multinomial"),
    *("rand", "nn.functional.", "svd_lowrank", "pca_lowrank", "linalg.lstsq", "empty_strided"),
)


def copied(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(copied(item) for item in value)
    return {key: copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def forms_of(op):
    """Returns (name, function, arguments) for the function, method, in-place and out= forms, with up to two samples."""
    dtypes = op.supported_dtypes("cpu")
    if not dtypes:
        return
    dtype = torch.float32 if torch.float32 in dtypes else min(dtypes, key=str)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), 0, 6, 3):
        given = (sample.input, sample.args, sample.kwargs)
        for form, function in (("function", op.op), ("method", op.method_variant), ("in place", op.inplace_variant)):
            if function is not None:
                yield form, function, given
        if op.supports_out:
            result = op.op(copied(sample.input), *copied(sample.args), **copied(sample.kwargs))
            if isinstance(result, torch.Tensor):
                yield "out", op.op, (sample.input, sample.args, {**sample.kwargs, "out": torch.zeros_like(result)})


def compared(function, given):
    """Returns the differences from eager, and the codes of the graph breaks."""
    program = lambda first, args, kwargs: function(first, *args, **kwargs)
    events = []
    unsubscribe = on_event(events.append)
    try:
        expected = observe(program, lambda: copied(given), seed=0, backward=False)
        if expected.error is not None:
            return "", []
        compiled = minidynamo.compile(program, backend="eager")
        actual = observe(compiled, lambda: copied(given), seed=0, backward=False)
        assert_equal_observations("call", expected, actual, {"rtol": 1e-5, "atol": 1e-6})
    except AssertionError as error:
        return str(error), []
    finally:
        unsubscribe()
    return "", [event.data["diagnostic"].code for event in events if event.kind == "graph_break"]


WEIGHTS = {torch.sin: 2.0, torch.cos: 3.0, torch.ops.aten.add.Tensor: 0.5, torch.Tensor.mul: 4.0, (torch.add, 1): 5.0}
SMOOTH = {torch.sin, torch.Tensor.add}


@programs(matrix)
class Cases:
    def pointwise(x):
        functions = torch.sin(x), torch.clamp(x, 0, 1), torch.where(x > 0, x, 0)
        functions += torch.lerp(x, x * 2, 0.5), torch.sigmoid(x)
        made = functions, x.tanh(), x.abs().sqrt(), x.addcmul(x, x, value=2)
        return *made, torch.logaddexp(x, x), x.masked_fill(x > 0, 0)

    def reductions(x):
        several = x.max(1), x.min(dim=0).indices, torch.topk(x, 2), torch.sort(x), x.median(0), torch.var_mean(x, 1)
        return several, x.sum(), x.mean(0), x.argmax(), x.amax(0), x.logsumexp(0), (x > 0).any(), x.std(1, keepdim=True)

    def linear_algebra(x):
        s = x @ x.T + torch.eye(3)
        made = torch.einsum("ij,kj->ik", x, x), torch.tensordot(x, x.T, 1), torch.linalg.norm(x), torch.linalg.qr(x).Q
        return made, torch.linalg.slogdet(s), torch.linalg.solve(s, x), torch.kron(x, x), torch.cdist(x, x), x.mv(x[0])

    def shapes(x):
        views = x.view(-1), x.reshape(2, 6), x.permute(1, 0), x.unsqueeze(0), x.expand(2, 3, 4), x.unfold(1, 2, 1), x.T
        parts = x.split(2), x.chunk(3, dim=1), torch.tensor_split(x, 2), x.unbind(0), x.narrow(0, 1, 2), x.diagonal()
        made = views, parts, torch.stack([x, x]), torch.cat((x, x), dim=1), x.repeat(2, 1)
        return *made, x.flip(0), x.roll(1), x.tile(2)

    @programs(lambda: [torch.randn(3), torch.randn(3)])
    def lists_of_tensors(xs):
        made = torch.stack(xs, dim=1), torch.meshgrid(*xs, indexing="ij"), torch.atleast_2d(*xs), torch.block_diag(*xs)
        return made, torch.broadcast_tensors(*xs), torch.cartesian_prod(*xs), torch.hstack(xs), [x * 2 for x in xs]

    @programs(lambda: [torch.randn(3), torch.randn(3)])
    def many_at_once(xs):
        torch._foreach_add_(xs, 1.0)
        return torch._foreach_mul(xs, 2.0), torch._foreach_norm(xs)

    def written_for_torch_jit(x):
        sizes = torch.jit.annotate(list[int], [])
        if torch.jit.isinstance(x.shape[0], int) and torch.jit.isinstance([x], list[torch.Tensor]):
            sizes.append(x.shape[0])
        made = x * len(sizes), sizes, torch.jit.isinstance("slaney", bool)
        return *made, torch.jit.isinstance({"a": 1}, dict[str, int])

    def networks(x):
        image = x.view(1, 1, 3, 4)
        acts = F.softmax(x, dim=-1), F.gelu(x, approximate="tanh"), F.leaky_relu(x), F.glu(x), F.normalize(x)
        norms = F.layer_norm(x, (4,)), F.batch_norm(x, torch.zeros(4), torch.ones(4)), F.group_norm(image, 1)
        losses = F.mse_loss(x, x * 2), F.cross_entropy(x, torch.tensor([0, 1, 2])), F.kl_div(x, x, reduction="sum")
        images = F.pad(image, (1, 1)), F.interpolate(image, scale_factor=2)
        images += F.max_pool2d(image, 2), F.conv2d(image, image)
        return acts, norms, losses, images, F.embedding(torch.tensor([0, 2]), x), F.one_hot(torch.tensor([0, 1]), 3)

    def distances_by_a_function(x):
        return F.triplet_margin_with_distance_loss(
            x, x * 2, x + 1, distance_function=lambda a, b: (a - b).abs().sum(-1)
        )

    @programs(vector)
    def written_in_place(x):
        x.add_(1).mul_(2)
        F.relu(x, inplace=True)
        x.clamp_(min=0)
        x **= 2
        x //= 3
        x %= 7
        x[0] = 5
        return x

    def shape_in_place(x):
        y = x.clone()
        y.t_()
        y.unsqueeze_(0)
        y.squeeze_()
        return y.transpose_(0, 1)

    @programs(lambda: (vector(), torch.empty(4), torch.empty(0)))
    def results_into_given_tensors(x, given, empty):
        new = torch.empty(4)
        r = torch.add(x, 1, out=new)
        torch.mul(x, 2, out=given)
        torch.div(x, 2, out=empty)
        return new * 2, r is new, given + 1, empty

    @programs(lambda: (matrix(), torch.empty(3), torch.empty(3, dtype=torch.int64)))
    def results_into_a_given_pair(x, values, indices):
        r = torch.max(x, 1, out=(values, indices))
        return r.values + 1, r[1], r.indices is indices

    @programs(vector)
    def operators_of_python(x):
        numbers = -x, +x, abs(x), x**2, 2**x, 1 / x, x // 1, 5 - x, x % 2, x @ x, pow(x, 2), x < 1, x == x
        bits = ~(x > 0), (x > 0) & (x < 1), (x > 0) | True, (x > 0) ^ False, x.int() << 1, x.int() >> 1
        return numbers, bits, x.__add__(1), x.__radd__(1), torch.Tensor.sum(x), torch.Tensor.__mul__(x, 2), sum([x, x])

    @programs(vector)
    def made_of_numbers(x):
        a = torch.tensor([1, 2, 3]), torch.tensor(3.5)
        a += torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.tensor(1j)
        b = torch.as_tensor([1, 2]), torch.as_tensor(x), torch.asarray(x), torch.full((2,), 3), torch.scalar_tensor(2)
        c = torch.arange(0, 1, 0.5), torch.linspace(0, 1, 3), torch.eye(2)
        c += torch.tril_indices(2, 2), torch.hann_window(4)
        d = torch.tensor(x.shape), torch.tensor(range(4)), x.new_tensor([1, 2])
        d += x.new_full((2,), 3), torch.zeros_like(x)
        return a, b, c, d

    @programs(vector)
    def found_by_name(x):
        table = {"relu": F.relu, "sin": torch.sin}
        return table["relu"](x), getattr(torch, "cos")(x), getattr(x, "tanh")(), list(map(torch.sin, [x]))  # noqa: B009

    def tables_of_functions(x):
        for function, weight in WEIGHTS.items():
            if function in SMOOTH:
                x = function(x) * weight
        found = WEIGHTS[torch.ops.aten.add.Tensor], WEIGHTS.get(torch.tan, 7.0)
        found += WEIGHTS[torch.add, 1], WEIGHTS[torch.Tensor.mul]
        return x * found[0], found, torch.relu in SMOOTH

    def names_of_functions(x):
        named = {
            function.__name__: function(x) for function in (torch.sin, F.relu, torch.Tensor.abs, torch.ops.aten.cos)
        }
        overload = torch.ops.aten.add.Tensor
        made = named, torch.sin.__qualname__, torch.cos.__doc__[:9], torch.sin.__module__
        return *made, overload.__name__, overload.namespace


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(8))
def test_every_operator_of_torch(part):
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415 - takes ten seconds

    problems = []
    for op in op_db[part::8]:
        for form, function, given in forms_of(op):
            difference, codes = compared(function, given)
            name = f"{op.name} ({form})"
            if difference and op.name not in UNINITIALIZED:
                problems.append(f"{name}: {difference[:200]}")
            unexpected = [code for code in codes if code not in EXPECTED_BREAKS]
            if unexpected and not op.name.startswith(NOT_CAPTURED):
                problems.append(f"{name}: breaks {unexpected}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_hot_is_row_major_whatever_the_layout_of_the_index(backend):
    def program(index):
        result = F.one_hot(index, 5)
        return result, result.stride(), F.one_hot(index.contiguous(), num_classes=6)

    index = torch.tensor([[0, 4, 1], [2, 3, 0]]).t()
    result, strides, _ = minidynamo.compile(program, backend=backend, fullgraph=True)(index)
    assert strides == result.stride() == program(index)[1] and torch.equal(result, program(index)[0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("shape", [(2, 3), (3,)])
def test_max_pool1d_without_gradients_makes_no_view(shape, backend):
    """Autograd refuses later writes to a view from a `no_grad` block."""
    program = minidynamo.compile(lambda x: F.max_pool1d(x, 2), backend=backend, fullgraph=True)
    for length in (8, 10, 12):
        x = torch.rand(*shape, length)
        with torch.no_grad():
            made, expected = program(x), F.max_pool1d(x, 2)
        assert not made._is_view() and torch.equal(made, expected)
        assert (made._version, made.stride()) == (expected._version, expected.stride())
        made.mul_(torch.ones(3, 1, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_max_pool1d_has_eagers_layouts(backend):
    def program(x, y):
        pooled = F.max_pool1d(x, 2), torch.max_pool1d(input=x, kernel_size=3), torch.nn.MaxPool1d(2)(x)
        trained, with_indices = F.max_pool1d(y, 2), F.max_pool1d(x, 2, return_indices=True)
        made = [*pooled, trained, *with_indices]
        with torch.no_grad():
            made.append(F.max_pool1d(y, 2))
        return made, [t.stride() for t in made]

    x = torch.rand(2, 8, 3).mT
    y = x.detach().requires_grad_()
    made, strides = minidynamo.compile(program, backend=backend, fullgraph=True)(x, y)
    expected, of_eager = program(x, y)
    assert strides == of_eager == [t.stride() for t in made] and strides[0] != strides[3]
    torch.testing.assert_close(made, expected, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)])
def test_arithmetic_of_numbers_alone_gives_tensors_that_may_be_sizes(backend):
    def program(x, width):
        rows = torch.div(x.shape[1], 2, rounding_mode="trunc")  # a tensor with a number known during capture
        parts = x.view(x.shape[0], rows, 2)
        wider = parts.new_zeros((x.shape[0], rows + 1, 2))
        wider[:, :-1] += parts
        numbers = [op(x.shape[0], width) for op in (torch.add, torch.sub, torch.mul, torch.div, torch.floor_divide)]
        return wider, *numbers, torch.div(7.5, width, rounding_mode="floor"), torch.add(True, 2)

    compiled = minidynamo.compile(program, backend=backend)
    for rows, width in ((4, 2), (4, 2), (6, 0.7), (8, 2.5), (10, 3.1)):
        x = torch.randn(3, rows, requires_grad=True)
        made, expected = compiled(x, width), program(x, width)
        torch.testing.assert_close(made, expected, rtol=0, atol=0)
        (made[0] * 2).sum().backward()
        assert torch.equal(x.grad, torch.full_like(x, 2))
