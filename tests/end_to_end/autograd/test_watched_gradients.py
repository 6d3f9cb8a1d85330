"""Gradients that are watched by hooks, `retain_grad` or `torch.autograd.grad` equal eager's, or an error reports that
they cannot be seen."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch

import minidynamo
from minidynamo.errors import Unsupported
from minidynamo.observe.comparison import seed_generators
from tests.end_to_end.programs import rows_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:MD402"),
    pytest.mark.filterwarnings("ignore:Using backward"),
]


def leaves():
    seed_generators(0)
    return [torch.randn(3).add(2).requires_grad_() for _ in range(2)]


def recorder(seen, factor=None):
    def hook(gradient):
        seen.append(gradient.clone())
        return None if factor is None else gradient * factor

    return hook


class Written:
    """Programs that write to a tensor after they give the tensor a hook."""

    def multiplied(x, hook):
        h = x.sin()
        h.register_hook(hook)
        h.mul_(3)
        return h.exp()

    def zeroed_and_read(x, hook):
        h = x.sin()
        h.register_hook(hook)
        h.zero_()
        return x * 2 + h

    def zeroed(x, hook):
        h = x.sin()
        h.register_hook(hook)
        h.zero_()
        return x * 2

    def retained_and_zeroed(x, hook):
        h = x * 2
        h.retain_grad()
        h.zero_()
        h.register_hook(hook)
        return h * x

    def partly_overwritten(x, hook):
        h = x.sin()
        h.register_hook(hook)
        h[0] = 7.0
        return h.exp()

    def written_through_a_view(x, hook):
        h = x.sin()
        v = h[1:]
        h.register_hook(hook)
        v.mul_(3)
        return h.exp()

    def view_whose_base_is_written(x, hook):
        h = x.sin()
        v = h[1:]
        v.register_hook(hook)
        h.mul_(3)
        return h.exp().sum() + v.sum()

    def view_that_is_written(x, hook):
        h = x.sin()
        v = h[1:]
        v.register_hook(hook)
        v.mul_(3)
        return h.exp().sum() + v.sum()

    def view_of_a_tensor_of_torch(x, hook):
        h = torch.nn.functional.linear(x, torch.ones(3, 3), torch.ones(3))
        h.register_hook(hook)
        return torch.relu_(h)

    def among_others(x, hook):
        h = x.sin()
        h.register_hook(hook)
        torch._foreach_mul_([h], 3.0)
        return h * x

    def several_at_once(x, hook):
        a, b = x.sin(), x.cos()
        torch.autograd.graph.register_multi_grad_hook((a, b), lambda gradients: [hook(g) for g in gradients] and None)
        a.mul_(2)
        return a * b


@pytest.mark.parametrize("factor", [None, 5])
@pytest.mark.parametrize("program", rows_of(Written))
def test_a_hook_of_what_the_program_writes_to_afterwards(program, factor):
    outcomes = []
    for call in (program, minidynamo.compile(program, backend="aot_eager")):
        seen, (x, _) = [], leaves()
        call(x, recorder(seen, factor)).sum().backward()
        outcomes.append((seen, x.grad))
    torch.testing.assert_close(*outcomes)


def test_what_the_program_keeps_of_a_tensor_that_it_writes_to():
    def program(x, kept):
        h = x * 2
        h.retain_grad()
        kept.append(h)
        h.mul_(3)
        return h.exp()

    outcomes = []
    for call in (program, minidynamo.compile(program, backend="aot_eager")):
        kept, (x, _) = [], leaves()
        call(x, kept).sum().backward()
        outcomes.append((kept[0].grad, x.grad))
    torch.testing.assert_close(*outcomes)


# Arguments and results


def written(y, w):
    y.mul_(w)
    return [y.exp()]


def written_in_part(y, w):
    y[0] = 5.0
    return [y * w]


def written_and_returned(y, w):
    y.mul_(w)
    z = y.sin()
    return [y, z, z * y]


def both_written(y, w):
    h = y.detach().clone()
    h.mul_(w)
    y.mul_(h)
    return [h, y.exp()]


def rounded(y, w):
    z = y.floor()
    return [z, z * w]


def view_of_a_result(y, w):
    z = y.sin()
    v = z[1:]
    return [z, v, v.exp() * w[1:]]


def view_of_the_argument(y, w):
    v = y[1:]
    return [v, v + 1]


def view_of_what_is_written(y, w):
    v = y.view(-1)
    v.mul_(w)
    return [v, v.exp()]


def parts(y, w):
    a, b, c = y.sin().unbind()
    return [a, b, c, a * b * c]


VIEWS = {
    (view_of_a_result, 2),
    (view_of_the_argument, 1),
    (view_of_what_is_written, 1),
    (parts, 1),
    (parts, 2),
    (parts, 3),
}
"""Where what arrives is not computed: the tensors of programs, 0 for the argument, then results."""


def retained(tensor, loss, given):
    tensor.retain_grad()
    loss.backward()
    return [tensor.grad, *(leaf.grad for leaf in given)]


def replaced(tensor, loss, given):
    seen = []
    tensor.register_hook(recorder(seen, 3))
    loss.backward()
    return [*seen, *(leaf.grad for leaf in given)]


def asked(tensor, loss, given):
    return torch.autograd.grad(loss, [tensor, *given], allow_unused=True)


def alone(tensor, loss, given):
    return torch.autograd.grad(loss, tensor, allow_unused=True)


def accumulated(tensor, loss, given):
    loss.backward(inputs=[tensor])
    return [tensor.grad]


def differentiable(tensor, loss, given):
    return torch.autograd.grad(loss, [tensor, *given], allow_unused=True, create_graph=True)


PROGRAMS = [
    written,
    written_in_part,
    written_and_returned,
    both_written,
    rounded,
    view_of_a_result,
    view_of_the_argument,
    view_of_what_is_written,
    parts,
]


def watch(call, place, ask):
    x, w = leaves()
    y = x * 2
    results = call(y, w)
    ends = results[-1].sum()
    return ask([y, *results][place], ends, [x, w])


@pytest.mark.parametrize("ask", [retained, replaced, asked, alone, accumulated, differentiable])
@pytest.mark.parametrize("program", PROGRAMS)
def test_watching_behind_the_call(program, ask):
    compiled = minidynamo.compile(program, backend="aot_eager")
    for place in range(len(program(*leaves_of_a_call())) + 1):
        expected = watch(program, place, ask)
        try:
            got = watch(compiled, place, ask)
        except Unsupported as error:
            assert "MD411" in str(error)
            assert (program, place) in VIEWS or ask is differentiable
        else:
            torch.testing.assert_close(got, expected)


def leaves_of_a_call():
    x, w = leaves()
    return x * 2, w


@pytest.mark.parametrize("how", [torch.Tensor.retain_grad, lambda y: y.register_hook(lambda gradient: gradient * 3)])
@pytest.mark.parametrize("program", [written, written_in_part, written_and_returned, view_of_what_is_written])
def test_an_argument_that_is_watched_before_the_call(program, how):
    compiled = minidynamo.compile(program, backend="aot_eager")
    x, w = leaves()
    compiled(x * 2, w)  # without a watcher
    for is_view in (False, True):
        outcomes = []
        for call in (program, compiled):
            x, w = leaves()
            base = x * 2
            y = base.view(3) if is_view else base
            how(y)
            sum(result.sum() for result in call(y, w)).backward()
            outcomes.append((y.grad, x.grad, w.grad))
        torch.testing.assert_close(*outcomes)


def test_a_hook_of_a_view_that_is_written_is_let_go():
    outcomes = []
    for call in (written, minidynamo.compile(written, backend="aot_eager")):
        seen, (x, w) = [], leaves()
        base = x.repeat(2)
        y = base[3:]
        y.register_hook(recorder(seen))
        call(y, w)[0].sum().backward()
        outcomes.append((seen, x.grad))
    torch.testing.assert_close(*outcomes)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_hook_on_a_view_that_the_program_has_filled(backend):
    """torch drops hooks registered before it rebuilds the node of a written view, and then crashes."""

    def program(y):
        y.fill_(2)

    outcomes = []
    for call in (program, minidynamo.compile(program, backend=backend)):
        seen, (x, _) = [], leaves()
        y = x.repeat(2)[3:]
        call(y)
        y.register_hook(recorder(seen, 2))
        (y * 3).sum().backward()
        outcomes.append((seen, x.grad))
    torch.testing.assert_close(*outcomes)


@pytest.mark.parametrize("hooked_inside", [True, False])
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_hook_on_a_view_that_is_written_without_gradients(backend, hooked_inside):
    def program(y, hook):
        with torch.no_grad():
            y.mul_(2)
        z = y.sin()
        if hook:
            y.register_hook(hook)
        return z

    outcomes = []
    for call in (program, minidynamo.compile(program, backend=backend)):
        seen, (x, _) = [], leaves()
        y = x.view(-1)[1:]
        z = call(y, recorder(seen) if hooked_inside else None)
        if not hooked_inside:
            y.register_hook(recorder(seen))
        z.sum().backward()
        outcomes.append((seen, x.grad, y._version))
    torch.testing.assert_close(*outcomes)


def test_hooks_of_what_is_gone():
    outcomes = []
    for call in (written, minidynamo.compile(written, backend="aot_eager")):
        seen, (x, w) = [], leaves()
        y = x * 2
        (z,) = call(y, w)
        y.register_hook(recorder(seen))
        del y
        z.sum().backward()
        outcomes.append((seen, x.grad))
    torch.testing.assert_close(*outcomes)
    v, z = minidynamo.compile(view_of_the_argument, backend="aot_eager")(*leaves_of_a_call())
    v.register_hook(print)
    del v
    with pytest.raises(Unsupported, match="MD411"):
        z.sum().backward()


def test_a_state_that_is_written_in_each_step():
    def step(h, x):
        h.mul_(0.5).add_(x)
        return h.sin()

    outcomes = []
    for call in (step, minidynamo.compile(step, backend="aot_eager")):
        (x, _), h, arrived = leaves(), torch.zeros(3), []
        for _ in range(3):
            z = call(h, x)
            h.retain_grad()
            z.sum().backward(retain_graph=True)
            arrived.append(h.grad)
            h.grad = None
        outcomes.append((arrived, x.grad))
    torch.testing.assert_close(*outcomes)


# Gradients of gradients for tensors that eager saved


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y


SAVING = {
    "result": lambda x, w: [(x * w).exp()],
    "custom": lambda x, w: [Exponential.apply(x * w)],
    "written": lambda x, w: [(x * 2).exp_(), w * 2],
    "argument": lambda x, w: [x.exp_(), w * 2],
    "two": lambda x, w: [(x * 0.1).tanh(), (x * w).sigmoid()],
    "read": lambda x, w: [y := x * 2, y * w],
    "linear": lambda x, w: [x * 3, x * w],
}


def differentiate_twice(call, place, watch, early, ask):
    x, w = leaves()
    results = call(x * 1, w)
    y = results[place]
    seen = []
    if early:
        watch(y, seen)
    gradients = torch.autograd.grad(sum(r.sum() for r in results), [x, w], create_graph=True)
    if not early:
        watch(y, seen)
    loss = sum(g.square().sum() for g in gradients if g.requires_grad)
    asked = {"all": None, "inputs": [x, w], "result": [y], "both": [y, x]}[ask]
    if asked is None:
        loss.backward()
    else:
        seen += torch.autograd.grad(loss, asked, allow_unused=True)
    return [*seen, x.grad, w.grad, y.grad]


WATCHES = {
    "nobody": lambda y, seen: None,
    "recorder": lambda y, seen: y.register_hook(recorder(seen)),
    "changer": lambda y, seen: y.register_hook(recorder(seen, 2)),
    "retained": lambda y, seen: y.retain_grad(),
    "removed": lambda y, seen: y.register_hook(recorder(seen, 2)).remove(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("ask", ["all", "inputs", "result", "both"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", SAVING)
def test_watching_what_gradients_of_gradients_arrive_at(name, backend, ask):
    program = SAVING[name]
    compiled = minidynamo.compile(program, backend=backend)
    places = range(len(program(*leaves_of_a_call())))
    for (kind, watch), place, early in itertools.product(WATCHES.items(), places, [False, True]):
        expected = differentiate_twice(program, place, watch, early, ask)
        try:
            got = differentiate_twice(compiled, place, watch, early, ask)
        except Unsupported as error:
            assert "MD411" in str(error)
            assert backend != "eager"
            assert kind in ("recorder", "changer", "retained") or ask in ("result", "both")
        else:
            torch.testing.assert_close(got, expected)


def test_a_watched_result_of_kernels_is_named():
    compiled = minidynamo.compile(SAVING["two"])
    x, w = leaves()
    a, b = compiled(x, w)
    (gradient,) = torch.autograd.grad(b.sum(), x, create_graph=True)
    a.retain_grad()
    gradient.sum().backward(retain_graph=True)  # which does not reach `a`
    assert a.grad is None
    b.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(Unsupported, match=r"MD411.*result 1 of a compiled graph"):
        gradient.sum().backward()


# Who is no watcher


def test_hooks_are_not_called_where_no_gradient_comes_in():
    def program(x, hook):
        return x * 2, x + 1

    for call in (program, minidynamo.compile(program, backend="aot_eager")):
        seen, together, (x, _) = [], [], leaves()
        y, z = call(x, None)
        y.register_hook(seen.append)
        torch.autograd.graph.register_multi_grad_hook((y, z), together.append)
        z.sum().backward()
        assert seen == []
        assert together[0][0] is None and together[0][1] is not None


class PassedOn(torch.autograd.Function):
    """Autograd calls hooks with None where a custom Function returns None."""

    @staticmethod
    def forward(ctx, x, w):
        return x * w

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient


@pytest.mark.parametrize("program, expected", [(lambda x, w: x.detach() + w, []), (PassedOn.apply, [None])])
def test_hooks_of_a_leaf_without_a_gradient(program, expected):
    for call in (program, minidynamo.compile(lambda x, w: program(x, w), backend="aot_eager")):
        seen, added, (x, w) = [], [], leaves()
        x.register_hook(seen.append)
        x.register_post_accumulate_grad_hook(lambda leaf, added=added: added.append(leaf.grad))
        call(x, w).sum().backward()
        assert seen == added == expected


@pytest.mark.parametrize("create_graph", [False, True])
def test_hooks_of_parameters_that_another_result_has(create_graph):
    def program(x, w):
        return x * x, w * w

    outcomes = []
    for call in (program, minidynamo.compile(program, backend="aot_eager")):
        seen, (x, w) = [], leaves()
        w.register_hook(recorder(seen))
        handle = x.register_hook(recorder(seen, 2))
        y, z = call(x, w)
        y.sum().backward(create_graph=create_graph)
        handle.remove()
        (call(x, w)[1] + z).sum().backward()
        outcomes.append((seen, x.grad.detach(), w.grad.detach()))
    torch.testing.assert_close(*outcomes)


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_who_asks_for_other_gradients_gets_them_from_one_graph(in_a_thread):
    """Covers differentiable gradients, too, which are refused between two results."""
    compiled = minidynamo.compile(view_of_a_result, backend="aot_eager")
    outcomes = []
    for call in (view_of_a_result, compiled):
        x, w = leaves()
        results = call(x * 2, w)

        def ask(x=x, w=w, results=results):
            made = torch.autograd.grad(results[2].sum(), [x, w], create_graph=True)
            outcomes.append([*made, *torch.autograd.grad(made[0].sum(), [x])])

        thread = threading.Thread(target=ask)
        thread.start() if in_a_thread else ask()
        if in_a_thread:
            thread.join()
    torch.testing.assert_close(*outcomes)


def test_an_edge_of_the_graph_of_autograd_is_asked_for():
    def program(x):
        y = x.sin()
        return y, y.exp()

    outcomes = []
    for call in (program, minidynamo.compile(program, backend="aot_eager")):
        x, _ = leaves()
        y, z = call(x)
        edge = torch.autograd.graph.get_gradient_edge(y)
        outcomes.append(torch.autograd.grad(z.sum(), [edge, x]))
    torch.testing.assert_close(*outcomes)


def view_before_the_write(a):
    view = a[:]
    view.mul_(2)
    return a, view


def moved_before_the_write(a):
    view = a.movedim(0, -1)
    view.cumsum_(-1)
    return a, view


def view_behind_the_write(a):
    a.mul_(2)
    return a, a[:]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("program", [view_before_the_write, moved_before_the_write, view_behind_the_write])
@pytest.mark.parametrize("is_view", [True, False])
def test_a_view_of_a_written_argument_leads_where_it_does_in_eager(program, is_view, backend):
    """A view from before the write keeps its history: it depends on the base of the argument, if any, and not on the
    argument."""

    def found(fn):
        leaf = torch.arange(1.0, 5.0, requires_grad=True)
        base = leaf * 1
        given = base[:] if is_view else base
        results = fn(given)
        loss = sum((i + 1) * result.sum() for i, result in enumerate(results))
        return torch.autograd.grad(loss, [*results, given, base, leaf])

    compiled = minidynamo.compile(program, backend=backend)
    for _ in range(2):
        for one, other in zip(found(compiled), found(program), strict=True):
            assert torch.equal(one, other)
