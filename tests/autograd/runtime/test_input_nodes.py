"""Tests of minidynamo/autograd/runtime/input_nodes.py: backward runs the history of the inputs that the used results
depend on."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import minidynamo
from minidynamo.graph.boxed import mark_boxed
from tests.autograd.programs import compile_program
from tests.end_to_end.programs import rows_of
from tests.held_gradients import HAS_BOXED_GRADIENTS
from tests.pairs import pairs

pytestmark = pytest.mark.filterwarnings("ignore:Using backward")

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


class Noting(torch.autograd.Function):
    """A square root that records its backward call; a zero gradient at a zero input gives NaN."""

    @staticmethod
    def forward(ctx, x, name, calls):
        ctx.save_for_backward(x)
        ctx.name, ctx.calls = name, calls
        return x.sqrt()

    @staticmethod
    def backward(ctx, gradient):
        ctx.calls.append(ctx.name)
        return gradient / ctx.saved_tensors[0].sqrt() / 2, None, None


def assert_gradients_equal(found, expected, where, **tolerance):
    """Checks that the same gradients are None, and that the rest are close."""
    assert [g is None for g in found] == [g is None for g in expected], where
    for mine, theirs in zip(found, expected):
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, **tolerance)


def two(a, b, w):
    return (a * w).sin(), (b * w).exp()


def three(a, b, w):
    return a.exp() * w, (a * b).cos(), b.exp() * 2


def one_from_another(a, b, w):
    y = a.sin() * w
    return y, y * b


def each_its_own(a, b, w):
    return a.exp(), b.sin(), w * 2


def writing(a, b, w):
    b.mul_(a)
    return b * w, w.sin()


def leading_nowhere(a, b, w):
    with torch.no_grad():
        c, d = a[:], b[:]
    return c * 2, d + c


def of_zeros(a, b, w):
    return a.sgn() + w, a * b


def views(a, b, w):
    return torch.stack([a, w]), (b * 2).chunk(2)[0], a.view(-1) * b


PROGRAMS = [two, three, one_from_another, each_its_own, writing, leading_nowhere, of_zeros, views]


def asked_for(place):
    def ask(outs, leaves):
        return torch.autograd.grad(sum(out.cos().sum() for out in outs), [leaves[place]], allow_unused=True)

    return ask


class Ways:
    def backward(outs, leaves):
        sum((out * out).sum() for out in outs).backward()
        return []

    def twice(outs, leaves):
        loss = sum((out * out).sum() for out in outs)
        loss.backward(retain_graph=True)
        loss.backward()
        return []

    def one_by_one(outs, leaves):
        for out in outs:
            out.cos().sum().backward(retain_graph=True)
        return []

    def added_to(outs, leaves):
        sum(out.cos().sum() for out in outs).backward(inputs=leaves[1:2])
        return []

    def again(outs, leaves):
        """Gradients of gradients, together with gradients."""
        loss = sum(out.cos().sum() for out in outs)
        found = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
        (loss + sum((g * g).sum() for g in found if g is not None and g.requires_grad)).backward()
        return [g if g is None else g.detach() for g in found]


WAYS = [*rows_of(Ways), asked_for(0), asked_for(1)]


def behind(x, y, calls, hooked):
    """Returns tensors computed from the leaves x and y, with a custom Function and perhaps hooks between."""
    a, b = Noting.apply(x, "a", calls) * 2, Noting.apply(y, "b", calls)
    if hooked:
        b.register_hook(lambda gradient: calls.append("hook of b") or gradient * 2)
        b.grad_fn.register_prehook(lambda gradients: calls.append("hook of its node"))
        y.register_post_accumulate_grad_hook(lambda leaf: calls.append("hook of y"))
        b = b + 1
    return a, b


def leaves_of_all():
    return [torch.tensor(value).requires_grad_() for value in ([0.5, 1, 2], [1.5, 1, 0.2], [2.0, 2, 2])]


def outcome(program, used, way, hooked):
    calls, leaves = [], leaves_of_all()
    outs = program(*behind(*leaves[:2], calls, hooked), leaves[2])
    try:
        found = way([out for place, out in enumerate(outs) if used >> place & 1], leaves)
    except RuntimeError as error:
        return [], [str(error)[:40]]
    return [*found, *(leaf.grad for leaf in leaves)], sorted(calls)


def name_of(value):
    return value if isinstance(value, str) else value.__name__


@pytest.mark.parametrize(
    "program, backend", pairs(PROGRAMS, BACKENDS, full=[two, writing], always=["aot_eager"]), ids=name_of
)
def test_gradients_and_calls_are_those_of_eager(program, backend):
    compiled = minidynamo.compile(program, backend=backend)
    results = len(program(*leaves_of_all()[:1], leaves_of_all()[1] * 1, leaves_of_all()[2]))
    for used, way, hooked in itertools.product(range(1, 1 << results), WAYS, (False, True)):
        values, calls = outcome(program, used, way, hooked)
        if calls and calls[0].startswith("ZeroTensors"):
            continue  # torch adds in place to an expanded zero
        ours, our_calls = outcome(compiled, used, way, hooked)
        assert our_calls == calls, (used, way)
        assert_gradients_equal(ours, values, (used, way), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_behind_an_argument_gets_no_zeros(backend):
    """Zeros would give zeros as gradients, or NaN at a zero input."""
    x, y, w = torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    calls = []
    first, _ = minidynamo.compile(two, backend=backend)(y * 1, Noting.apply(x, "b", calls) * 2, w)
    first.sum().backward()
    assert x.grad is None and calls == [] and torch.equal(y.grad, w.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_on_what_leads_nowhere_is_not_called(backend):
    calls = []

    def program(x):
        view = x.view(1, 3)[0]
        with torch.no_grad():
            silent = view[1:]
        result = silent * 2
        view.register_hook(calls.append)
        return result

    compiled = minidynamo.compile(program, backend=backend, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    for result in (program(x), compiled(x)):
        assert result.requires_grad
        result.sum().backward()
    assert x.grad is None and calls == []


def products(a, b, w):
    return (a.exp() * b * w,)


def apart(a, b, w):
    return (a * w).sin(), (b * w).cos()


def powers(a, b, w):
    return a**3 + w * b, (a * b) ** 2 * w


@pytest.mark.parametrize(
    "program, backend",
    pairs([products, powers, apart, two, one_from_another], BACKENDS, full=[powers], always=["aot_eager"]),
    ids=name_of,
)
def test_gradients_of_some_gradients_lead_where_they_do_in_eager(program, backend):
    def run(function, used, order):
        calls, leaves = [], leaves_of_all()
        a, b = behind(*leaves[:2], calls, True)
        values = function(a, b, leaves[2])
        for _ in range(order):
            loss = sum((value * value).sum() for value in values)
            made = torch.autograd.grad(loss, (a, b, leaves[2]), create_graph=True, allow_unused=True)
            values = [value for place, value in enumerate(made) if used >> place & 1 and value is not None]
            values = [value for value in values if value.requires_grad]
        calls.clear()
        if values:
            sum(value.sum() for value in values).backward()
        return [leaf.grad for leaf in leaves], sorted(calls)

    compiled = minidynamo.compile(program, backend=backend, fullgraph=True)
    for used, order in itertools.product(range(1, 8), (1, 2)):
        expected, called = run(program, used, order)
        found, our_calls = run(compiled, used, order)
        assert our_calls == called, (used, order)
        assert_gradients_equal(found, expected, (used, order), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_the_only_requested_gradient(backend):
    """Forces, say: the gradient of a leaf before the graph, and not of the weight, is differentiated again."""
    found = []
    for run in (torch.mul, minidynamo.compile(lambda h, w: h * w, backend=backend)):
        x, w = torch.tensor([0.5, 2.0], requires_grad=True), torch.tensor([3.0, -1.0], requires_grad=True)
        force = torch.autograd.grad(run(x.sin(), w).sum(), x, create_graph=True)[0]
        found.append((force, *torch.autograd.grad(force.square().sum(), [x, w])))
    assert_gradients_equal(*found, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_behind_a_gradient_that_is_not_used_gets_no_zeros(backend):
    def program(a, b):
        return a.sin() * b

    for run in (program, minidynamo.compile(program, backend=backend, fullgraph=True)):
        calls, x, y = [], torch.ones(2, requires_grad=True), torch.zeros(2, requires_grad=True)
        a, b = x * 1, Noting.apply(y, "b", calls)
        _, of_b = torch.autograd.grad(run(a, b).sum(), (a, b), create_graph=True)
        of_b.sum().backward()
        assert calls == [] and y.grad is None
        torch.testing.assert_close(x.grad, torch.ones(2).cos())


def test_a_checkpoint_behind_an_argument_is_not_run_again():
    x, p = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    inside = checkpoint(lambda t: (t * p).exp(), x, use_reentrant=True)
    first, _ = minidynamo.compile(two, backend="aot_eager")(x * 1, inside, torch.ones(2, requires_grad=True))
    first.sum().backward()
    assert p.grad is None and x.grad is not None


class Watched(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, watched):
        ctx.mine = Mine()
        watched.append(weakref.ref(ctx.mine))
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Mine:
    pass


def test_what_is_behind_an_argument_dies_with_the_results_that_lead_there():
    f = minidynamo.compile(two, backend="aot_eager")
    w, watched = torch.ones(2, requires_grad=True), []
    first, other = f(Watched.apply(w, watched), Watched.apply(w, watched), w)
    gc.disable()
    try:
        del other
        assert [reference() is None for reference in watched] == [False, True]
        first.sum().backward()
        del first
        assert [reference() is None for reference in watched] == [True, True]
    finally:
        gc.enable()


def test_which_results_lead_to_which_inputs_is_noted():
    """Follows eager's edges, not the numbers: an edge with a zero derivative counts, too."""
    leaves = leaves_of_all()

    def reached_from(program, args):
        edges = compile_program(program, args).signature.graph.edges
        return [edge.reached_from for edge in sorted(edges, key=lambda edge: edge.input)]

    assert reached_from(two, leaves) == [(0,), (1,), (0, 1)]
    assert reached_from(of_zeros, leaves) == [(0, 1), (1,), (0,)]
    assert reached_from(lambda a, b: (a * b, a + b), leaves[:2]) == [(0, 1), (0, 1)]


def test_leaves_stay_at_the_node_of_the_graph():
    f = minidynamo.compile(lambda a, b, w: (a + w, b - w), backend="aot_eager")
    a, b, w = leaves_of_all()
    first, other = f(a, b, w)
    assert first.grad_fn is other.grad_fn
    first, other = f(a * 1, b, w)
    assert first.grad_fn.next_functions[0][0] is other.grad_fn


def test_a_write_to_a_result_is_noticed():
    def kept(a, b):
        return a.exp(), b.exp()

    a, b = (leaf * 1 for leaf in leaves_of_all()[:2])
    first, other = minidynamo.compile(kept, backend="aot_eager")(a, b)
    assert first._version == 0 and not first._is_view() and first.grad_fn is not other.grad_fn
    first.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.sum().backward()


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(True, id="from another node"),
        pytest.param(
            False,
            id="in the node of the graph",
            marks=pytest.mark.skipif(not HAS_BOXED_GRADIENTS, reason="autograd hands gradients in one by one"),
        ),
    ],
)
def test_what_comes_in_dies_in_backward(asked):
    """As with a single input node: no gradient of a result is held while the gradients of inputs are computed."""
    seen, watched = [], []

    def look(gm, examples):
        def run(args):
            watched[:] = [weakref.ref(value) for value in args if value.shape == (3,) and value.sum() == 3]
            args.clear()
            seen.append([reference() is None for reference in watched])
            return [None] * len(gm.graph.output_node().args[0])

        return mark_boxed(run)

    leaves = leaves_of_all()
    call = compile_program(each_its_own, leaves, backward=look)
    a, b, w = leaves[0] * 1, leaves[1] * 1, leaves[2]
    made = call([a, b, w])
    given = [torch.ones(3) for _ in made]
    if asked:
        targets, made, given = [b], made[1:2], given[1:2]
    else:
        targets = [b, w]
    torch.autograd.grad(
        [Handing.apply(value) for value in made], targets, [one * 2 for one in given], allow_unused=True
    )
    assert seen and all(map(all, seen))


class Handing(torch.autograd.Function):
    """Returns a gradient without another owner."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.ones_like(gradient)
