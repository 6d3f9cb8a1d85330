"""Tests of minidynamo/autograd/runtime/partial_backward.py: backward graphs without unused gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.autograd.runtime.partial_backward import WHOLE, BackwardPart, part_of
from tests.autograd.programs import compile_program, graphs, inputs, interpret, targets

ATEN = torch.ops.aten


def part(program, args, unused=(), unwanted=(), strides=(), dynamic=False):
    """Returns the graph of a partial backward of `program`, and the number of values that forward saves. `unwanted`
    are numbers of inputs."""
    made = graphs(program, args, dynamic=dynamic)
    saved = len(made.partition.sources)
    what = BackwardPart(frozenset(unused), frozenset(map(made.signature.graph.inputs.index, unwanted)), tuple(strides))
    return part_of(made.backward, saved, what), saved


def chain(x, v, w):
    return (((x @ v).tanh() @ w).sin(),)


def square():
    return inputs((4, 4), (4, 4), (4, 4))()[0]


def results(gm):
    (output,) = gm.graph.find_nodes(op="output")
    return output.args[0]


def test_what_is_not_wanted_is_not_computed():
    assert WHOLE.stage == "backward"
    assert BackwardPart(unused=frozenset({2, 0}), strides=((1, (0, 1)),)).stage == (
        "backward, results unused: 0 2, strides: {1: (0, 1)}"
    )
    whole = targets(part(chain, square())[0])
    for unwanted, products in (((), 4), ((0,), 3), ((1, 2), 2), ((0, 1), 1), ((0, 1, 2), 0)):
        gm, _ = part(chain, square(), unwanted=unwanted)
        assert sum(node is None for node in results(gm)) == len(unwanted)
        assert targets(gm).count("aten.mm.default") == products
        assert len(targets(gm)) <= len(whole)
    assert targets(gm) == []


def both(x, v, w):
    return (x @ v).tanh(), (x.sin() @ w).t()


REPEATED = ((0, (0, 0)), (1, (0, 0)))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_repeated_number_is_read_as_it_is(dynamic):
    gm, saved = part(both, square(), strides=REPEATED, dynamic=dynamic)
    tangents = gm.graph.find_nodes(op="placeholder")[saved:]
    assert [node.meta["val"].stride() for node in tangents] == [(0, 0), (0, 0)]
    assert "aten.clone.default" not in targets(gm)


READ_AS_THEY_ARE = {
    "slopes": lambda x, v, w: (F.mish(x), F.softplus(x.sin())),
    "chosen": lambda x, v, w: (x.index_select(0, torch.arange(3)), v.cummax(0)[0]),
    "windows": lambda x, v, w: (F.avg_pool2d(x[None], 2), F.pad(v[None], (1, 1), mode="reflect")),
    "losses": lambda x, v, w: (
        F.binary_cross_entropy(x.sigmoid(), v.detach().sigmoid(), reduction="none"),
        F.mse_loss(x, v),
    ),
    "rows": lambda x, v, w: (x.amax(0), F.layer_norm(v, (4,))),
}


@pytest.mark.parametrize("dynamic", [False, True])
def test_derivatives_read_repeated_numbers_as_they_are(dynamic):
    for name, program in READ_AS_THEY_ARE.items():
        results = program(*square())
        repeated = [(place, (0,) * result.dim()) for place, result in enumerate(results)]
        gm, _ = part(program, square(), strides=repeated, dynamic=dynamic)
        assert not any(node.target is torch.ops.aten.clone.default for node in gm.graph.nodes), name


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_repeated_number_is_laid_out_where_it_is_first_read_by_something_that_counts_on_it(dynamic):
    def program(x, v, w):
        return (x @ v).exp(), torch.cholesky_solve(v, w)

    gm, _ = part(program, square(), strides=REPEATED, dynamic=dynamic)
    made = targets(gm)
    laid_out, read = made.index("aten.clone.default"), made.index("aten.cholesky_solve.default")
    assert laid_out < read and "aten.mm.default" not in made[laid_out:read]


def two(x, w):
    return (x @ w).tanh(), (x.sin() @ w).t()


def unchanged(x, w):
    return x * w, (x + w).to(memory_format=torch.channels_last)


def joined(x, w):
    y = (x * w).exp()
    return y, y[1:].t(), y.sum(0)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize(
    "program, shape", [(two, (5, 5)), (unchanged, (2, 3, 4, 5)), (joined, (4, 4)), (lambda x, w: (x + w, x - w), (3,))]
)
def test_gradients_of_sums_are_those_of_eager(program, shape, backend):
    leaves = inputs(shape, shape)()[0]
    call = minidynamo.compile(program, backend=backend)
    losses = (
        lambda made: sum(value.sum() for value in made),
        lambda made: made[0].sum() * 3 + made[1].square().sum(),
        lambda made: made[1].sum(),
        lambda made: sum(value.sum() * value.mean() for value in made),
    )
    for loss in losses:
        wanted = torch.autograd.grad(loss(program(*leaves)), leaves)
        got = torch.autograd.grad(loss(call(*leaves)), leaves)
        for mine, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(mine, other)


def test_what_one_operator_computes_is_masked():
    def program(x, weight, bias):
        return (F.conv2d(x, weight, bias),)

    args = inputs((1, 2, 4, 4), (2, 2, 3, 3), (2,))()[0]
    for place in range(3):
        gm, _ = part(program, args, unwanted={0, 1, 2} - {place})
        (node,) = gm.graph.find_nodes(op="call_function", target=ATEN.convolution_backward.default)
        assert node.args[-1] == [place == i for i in range(3)]
        assert [value is not None for value in node.meta["val"]] == node.args[-1]


def two(x, v):
    h = x.sin()
    return h @ v, h.sqrt()


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_comes_from_an_unused_result_alone_is_left_out(dynamic):
    args = inputs((4, 3), (3, 5))()[0]
    gm, saved = part(two, args, unused={1}, dynamic=dynamic)
    assert not any("sqrt" in target or "add" in target for target in targets(gm))
    unused = gm.graph.find_nodes(op="placeholder")[saved + 1]
    assert not unused.users and unused.meta["val"].stride() == (0, 0)
    gm, _ = part(two, args, unused={0}, unwanted={1}, dynamic=dynamic)
    assert "aten.mm.default" not in targets(gm)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("used", [0, 1])
def test_an_unused_result_has_no_say_in_gradients(used, dynamic):
    """A zero gradient in its place would turn infinities into NaN."""

    def program(x, v):
        return ((x * v).sum(), x.sqrt() / v) if used == 0 else (x.log() * v, (x + v).sum())

    x, v = torch.zeros(3, requires_grad=True), torch.ones(3, requires_grad=True)
    call = compile_program(program, [x, v], dynamic=dynamic)
    got = torch.autograd.grad(call([x, v])[used], (x, v))
    wanted = torch.autograd.grad(program(x, v)[used], (x, v))
    assert all(map(torch.equal, got, wanted))
    assert got[0].isfinite().all()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("used", [[0], [1], [2], [0, 2], [0, 1, 2]])
def test_gradients_of_some_results(used, dynamic):
    """Covers parts of one tensor: the gradient of a single part is joined with zeros."""

    def program(x, v):
        a, b = (x @ v).t().split([2, 3])
        return a.exp(), torch.cat([b * 2, x.t() * 3]), (a.sum(1).unsqueeze(1) * b[:1]).t()

    leaves = inputs((4, 3), (3, 5))()[0]
    call = compile_program(program, leaves, dynamic=dynamic)
    for asked in (leaves, leaves[:1], leaves[1:]):
        outcomes = []
        for function in (lambda *args: call([*args]), program):
            made = function(*leaves)
            loss = sum(made[i].square().sum() for i in used)
            outcomes.append(torch.autograd.grad(loss, asked))
        for got, wanted in zip(*outcomes, strict=True):
            torch.testing.assert_close(got, wanted)


def counting():
    """Returns a compiler of backward graphs, and the operators of the graphs that the compiler received."""
    made = []

    def compiler(gm, examples):
        made.append(targets(gm))
        return interpret(gm, examples)

    return compiler, made


def test_each_part_is_compiled_once_and_a_retained_graph_may_be_asked_for_several():
    compiler, made = counting()
    leaves = square()
    call = compile_program(chain, leaves, backward=compiler)
    wanted = torch.autograd.grad(chain(*leaves)[0].sum(), leaves)
    loss = call(list(leaves))[0].sum()
    for asked in ([0], [1], [0], [1, 2], [0, 1, 2], [1]):
        got = torch.autograd.grad(loss, [leaves[i] for i in asked], retain_graph=True)
        torch.testing.assert_close(got, tuple(wanted[i] for i in asked))
    assert [operators.count("aten.mm.default") for operators in made] == [2, 2, 3, 4]
    loss.backward(inputs=leaves[:1])
    torch.testing.assert_close(leaves[0].grad, wanted[0])
    assert leaves[1].grad is None and len(made) == 4
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("asked", [[0], [1], [0, 2]])
def test_gradients_that_are_differentiated_again(asked):
    compiler, made = counting()
    leaves = square()
    call = compile_program(chain, leaves, backward=compiler)
    outcomes = []
    for function in (lambda *args: call([*args]), chain):
        first = torch.autograd.grad(function(*leaves)[0].sum(), [leaves[i] for i in asked], create_graph=True)
        outcomes.append([*first, *torch.autograd.grad(sum(g.square().sum() for g in first), leaves)])
    for got, wanted in zip(*outcomes, strict=True):
        torch.testing.assert_close(got, wanted)
    assert made[0].count("aten.mm.default") < 4


class Both(torch.autograd.Function):
    """Backward is called for each of the two results alone, with zeros for the missing gradient, and maps zeros to
    nonzero values."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return first + (second + 1) * ctx.saved_tensors[0]


class One(torch.autograd.Function):
    """Backward runs only if needed; it maps zeros to nonzero values, and draws."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return (gradient + 1) * torch.rand(3)


class Aside(torch.autograd.Function):
    """Backward ignores the incoming gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0] * 2


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(
    "fn",
    [lambda x: Both.apply(x.sin()), lambda x: (One.apply(x), x.sin()), lambda x: (Aside.apply(x), x.sin())],
    ids=["both", "one", "aside"],
)
def test_a_backward_of_the_users_is_called_as_in_eager(fn, used):
    def run(function):
        torch.manual_seed(0)
        x = torch.arange(1.0, 4.0, requires_grad=True)
        results = function(x)
        sum(results[i].sum() for i in used).backward()
        return x.grad, torch.rand(1)

    torch.testing.assert_close(run(minidynamo.compile(fn, backend="aot_eager")), run(fn))


def test_however_many_parts_there_are_an_unused_result_is_left_out():
    def program(x, y):
        return x.sum(), (x * 2).sum(), (x * y).sum(), (y * 4).sum(), x.sqrt()

    def run(function, used, wanted):
        args = [torch.zeros(3, requires_grad=True) for _ in range(2)]
        results = function(*args)
        loss = sum(results[i] for i in used)
        return torch.autograd.grad(loss, [args[i] for i in wanted], allow_unused=True)

    compiled = minidynamo.compile(program, backend="aot_eager")
    subsets = [used for n in (1, 2, 3, 4) for used in itertools.combinations(range(4), n)]
    for wanted in ([0, 1], [0], [1]):
        for used in subsets:
            torch.testing.assert_close(run(compiled, used, wanted), run(program, used, wanted))
