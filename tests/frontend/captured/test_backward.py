"""Captured backwards against eager: one graph, the same bits, the same hooks, the same memory."""

from __future__ import annotations

import contextlib
import copy
import sys

import pytest
import torch

import minidynamo
from benchmarks.captured_programs import Block, Square, TwoRegions, WithFunction, mlp
from minidynamo import captured_backward
from minidynamo.errors import ArgumentError, UnknownName, Unsupported
from minidynamo.testing import CompileCounter, CompileCounterWithBackend, StorageWatch, probe

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=[pytest.mark.cpp, pytest.mark.slow])]


def train(make, capture, calls=4, tensors=False):
    """Returns the gradients after `calls` backwards into the same `.grad`, and the order of the leaves."""
    torch.manual_seed(0)
    model, order = make(8), []
    if isinstance(model, TwoRegions):
        model.compiled("aot_eager")
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    for _ in range(calls):
        x = torch.randn(2, 4, 8, requires_grad=True)
        y = model(x)
        y.register_hook(lambda g: g * 2)
        with capture:
            ((y * x).sum() + y.sin().sum()).backward()
    return [x.grad, *(parameter.grad for parameter in model.parameters())], order


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [mlp, Block, WithFunction, TwoRegions])
def test_training_equals_eager(make, backend):
    expected, expected_order = train(make, contextlib.nullcontext())
    counter = CompileCounterWithBackend(backend)
    actual, order = train(make, captured_backward(counter))
    exact = {"rtol": 1e-5, "atol": 1e-5} if backend == "native" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(actual, expected, **exact)
    assert order == expected_order
    if make not in (Block, TwoRegions):  # a checkpoint unpacks its tensors by a hook; some results need own tensors
        assert counter.frame_count == 2  # the first backward finds no `.grad`


def test_a_second_backward_of_the_same_structure_compiles_nothing():
    counter = CompileCounterWithBackend("eager")
    x = torch.randn(3, requires_grad=True)
    for _ in range(3):
        x.grad = None
        with captured_backward(counter, fullgraph=True):
            (x.sin() * x).sum().backward()
    assert counter.frame_count == 1
    torch.testing.assert_close(x.grad, x.detach().cos() * x.detach() + x.detach().sin())


def test_sizes_become_symbolic_once_they_change():
    counter = CompileCounterWithBackend("aot_eager")
    w = torch.randn(4, 5, requires_grad=True)
    for rows in (2, 3, 5, 7):
        x = torch.randn(rows, 4, requires_grad=True)
        with captured_backward(counter, fullgraph=True):
            (found,) = torch.autograd.grad((x @ w).sin().sum(), [w])
        (expected,) = torch.autograd.grad((x @ w).sin().sum(), [w])
        torch.testing.assert_close(found, expected)
    assert counter.frame_count == 2


@captured_backward("eager", fullgraph=True)
def gradients(y, inputs, **others):
    return torch.autograd.grad(y, inputs, **others)


def test_keywords_are_checked_at_once():
    for keywords, error in (({"backend": "nope"}, UnknownName), ({"dynamic": 1}, ArgumentError)):
        with pytest.raises(error, match="MD10"):
            captured_backward(**keywords)


def test_it_decorates_functions_and_returns_requested_gradients():
    x = torch.randn(3, requires_grad=True)
    middle = x.exp()
    assert torch.equal(torch.stack(gradients((middle * x).sum(), [middle, x])), torch.stack([x, middle * x + middle]))


def test_gradients_of_gradients_are_right():
    x = torch.randn(3, requires_grad=True)
    (first,) = gradients((x**3).sum(), [x], create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), [x])
    torch.testing.assert_close(second, 6 * x)


def test_a_graph_that_is_kept_can_run_again_and_one_that_is_not_raises_as_in_eager():
    x = torch.randn(3, requires_grad=True)
    y = (x * x).sum()
    with captured_backward("eager"):
        y.backward(retain_graph=True)
        y.backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()
    assert torch.equal(x.grad, 4 * x)


def test_leaves_do_not_share_memory():
    a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    with captured_backward("eager"):
        ((a + b) * 2).sum().backward()
    a.grad.zero_()
    assert b.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("custom", [False, True])
def test_saved_tensors_die_at_their_last_use(backend, custom):
    def alive(capture):
        x = torch.ones(3, requires_grad=True)
        y, saved = x * 1, {}
        for i in range(5):
            saved[str(i)] = y.detach()
            y.register_hook(probe)
            y = Square.apply(y) if custom else y.sin()
        watch = StorageWatch(**saved)
        saved.clear()
        with capture:
            y.sum().backward()
        return [len(names) for names in watch.seen]

    capture = captured_backward(backend, fullgraph=True)
    alive(capture)  # compiles
    assert alive(capture) == alive(contextlib.nullcontext()) == [4, 3, 2, 1, 0]


# Hooks on tensors inside of compiled functions


def run_with_hooks(program, arguments, capture, backend):
    """Returns the gradients of `x` for each tuple of arguments."""
    compiled, found = minidynamo.compile(program, backend=backend), []
    for others in arguments:
        x = torch.ones(4, requires_grad=True)
        y = compiled(x, *others)
        with capture:
            y.sum().backward()
        found.append(x.grad)
    return found


class Holder:
    val = 0


def adds_closure(x, holder):
    y = x.sin()
    c = y + 1
    y.register_hook(lambda g: g + holder.val + c)
    return y.sin()


def takes_hook(x, hook):
    y = x.sin()
    y.register_hook(hook)
    return y.sin()


def default_of_hook(x, k):
    y = x.sin()
    y.register_hook(lambda g, k=k: g * k)
    return y.sin()


def two_hooks(x):
    y = 2 * x
    y.register_hook(lambda g: g + 1)
    y.register_hook(lambda g: g * 10)
    return (y / 2).sin() * 2


HOOKS = [lambda g: g * 2, lambda g: g + 1, lambda g: g * 3]


@pytest.mark.parametrize(
    ("program", "arguments", "most_backwards"),
    [
        (two_hooks, [()], 1),
        (takes_hook, [(hook,) for hook in HOOKS], 3),
        (default_of_hook, [(2.0,), (3.0,), (4.0,)], 3),
    ],
)
def test_hooks_inside_compiled_functions_are_captured(program, arguments, most_backwards):
    forward, backward = CompileCounter(), CompileCounterWithBackend("eager")
    capture = captured_backward(backward, fullgraph=True)
    found = run_with_hooks(program, arguments, capture, forward)
    assert torch.equal(torch.stack(found), torch.stack([_eagerly(program, others) for others in arguments]))
    assert backward.frame_count <= most_backwards


def _eagerly(program, others):
    x = torch.ones(4, requires_grad=True)
    program(x, *others).sum().backward()
    return x.grad


def test_values_that_hooks_close_over_are_read_at_run_time():
    backward, holder, found = CompileCounterWithBackend("aot_eager"), Holder(), []
    compiled = minidynamo.compile(adds_closure, backend="aot_eager", fullgraph=True)
    for holder.val in (88, 89, 90):
        x = torch.ones(4, requires_grad=True)
        with captured_backward(backward, fullgraph=True):
            compiled(x, holder).sum().backward()
        found.append(x.grad)
        assert torch.equal(x.grad, _eagerly(adds_closure, (holder,)))
    assert found[0][0].item() == pytest.approx(48.9016, rel=1e-5)
    assert backward.frame_count == 2  # the number becomes symbolic once it has changed


def removed(y, log):
    y.register_hook(lambda g: g * 2).remove()


def returns_none(y, log):
    y.register_hook(lambda g: None)


def appends(y, log):
    y.register_hook(lambda g: log.append(g[0].item()))


def prints(y, log):
    y.register_hook(print)


@pytest.mark.parametrize("register", [removed, returns_none, appends, prints])
def test_effects_of_hooks_are_those_of_eager(register, capsys):
    def run(transform, capture):
        log, x = [], torch.ones(4, requires_grad=True)

        def program(x):
            y = x.sin()
            register(y, log)
            return y.sin()

        y = transform(program)(x)
        with capture:
            y.sum().backward()
        return log, x.grad.tolist(), capsys.readouterr().out

    compiled = run(lambda f: minidynamo.compile(f, backend="aot_eager"), captured_backward("aot_eager"))
    assert compiled == run(lambda f: f, contextlib.nullcontext())


@pytest.mark.parametrize("hook", [lambda g: g[:2], lambda g: g.double(), lambda g: 1.0])
def test_a_wrong_result_of_a_hook_raises_as_in_eager(hook):
    def run(capture):
        x = torch.ones(4, requires_grad=True)
        y = takes_hook(x, hook)
        with capture, pytest.raises((RuntimeError, TypeError)) as caught:
            y.sum().backward()
        return type(caught.value), str(caught.value)

    assert run(captured_backward("eager")) == run(contextlib.nullcontext())


def test_hooks_of_nodes_and_modules_keep_their_order():
    def run(capture):
        torch.manual_seed(0)
        log, model = [], torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
        for name, layer in model.named_children():
            layer.register_full_backward_pre_hook(lambda m, g, name=name: log.append(("before", name)))
            layer.register_full_backward_hook(lambda m, gi, go, name=name: (gi[0] * 2, *gi[1:]))
        x = torch.randn(4, 3, requires_grad=True)
        y = model(x)
        y.grad_fn.register_hook(lambda gi, go: log.append("after the last node"))
        y.grad_fn.register_prehook(lambda go: (go[0] * 3,))
        y.retain_grad()
        with capture:
            y.sin().sum().backward()
        return log, [x.grad, y.grad, *(p.grad for p in model.parameters())]

    log, grads = run(captured_backward("eager"))
    expected_log, expected = run(contextlib.nullcontext())
    assert log == expected_log
    torch.testing.assert_close(grads, expected, rtol=0, atol=0)


def test_hooks_of_modules_are_captured_once():
    model, counter = torch.nn.Linear(3, 3), CompileCounterWithBackend("eager")
    model.register_full_backward_pre_hook(lambda module, gradients: (gradients[0] * 2,))
    model.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 5,))
    for _ in range(3):
        x = torch.ones(2, 3, requires_grad=True)
        model.zero_grad()
        with captured_backward(counter):
            model(x).sum().backward()
        torch.testing.assert_close(x.grad, 10 * model.weight.sum(0).expand(2, 3))
    assert counter.frame_count == 1


def test_saved_tensor_hooks_unpack_in_a_captured_backward():
    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        y = (x.sin() * x).sum()
    with captured_backward("eager"):
        y.backward()
    torch.testing.assert_close(x.grad, x.detach().cos() * x.detach() + x.detach().sin())


def test_fullgraph_refuses_a_hook_that_cannot_be_captured():
    x = torch.ones(3, requires_grad=True)
    y = x.sin()
    y.register_hook(minidynamo.disable(lambda g: g * 2))
    with captured_backward("eager", fullgraph=True), pytest.raises(Unsupported):
        y.sum().backward()


def test_writes_to_parts_of_tensors_are_differentiated():
    def run(capture):
        torch.manual_seed(0)
        a, b = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
        y = a * 2
        y[1] = b.exp()
        y[:, 0].mul_(3)
        with capture:
            y.sin().sum().backward()
        return [a.grad, b.grad]

    torch.testing.assert_close(run(captured_backward("eager")), run(contextlib.nullcontext()), rtol=0, atol=0)


def test_a_model_and_its_copy_share_captured_backwards():
    counter = CompileCounterWithBackend("eager")
    model = mlp(8)
    for each in (model, copy.deepcopy(model)):
        with captured_backward(counter):
            each(torch.randn(2, 8)).sum().backward()
    assert counter.frame_count == 1


def test_a_setting_captures_every_backward():
    seen, x = [], torch.ones(3, requires_grad=True)
    stop = minidynamo.on_event(lambda event: seen.append(event.name) if event.kind == "artifact" else None)
    with minidynamo.config.patch(captured_backward=True, backend="eager"):
        x.sin().exp().sum().backward()
    (x.sin() * 3).sum().backward()
    stop()
    assert seen.count("backward") == 1


def test_leaves_share_no_memory_when_a_varying_size_ends_a_broadcast():
    bias = torch.ones(1, requires_grad=True)
    for size in (3, 4, 1):
        x, bias.grad = torch.ones(size, requires_grad=True), None
        with captured_backward("eager"):
            ((x + bias) * 2).sum().backward()
        assert bias.grad.tolist() == [2.0 * size]
    assert x.grad.data_ptr() != bias.grad.data_ptr()


def test_a_hook_may_return_a_gradient_with_other_strides_to_a_compiled_graph():
    weight = torch.randn(3, 3, requires_grad=True)
    compiled = minidynamo.compile(lambda x: (x @ weight).view(9).sin().view(3, 3), backend="aot_eager")
    x = torch.randn(3, 3, requires_grad=True)

    def run(f, capture):
        y = f(x)
        y.register_hook(lambda g: (g.t() * 2).contiguous().t())
        with capture:
            return torch.autograd.grad(y.exp().sum(), [x, weight])

    expected = run(lambda x: (x @ weight).view(9).sin().view(3, 3), contextlib.nullcontext())
    torch.testing.assert_close(run(compiled, captured_backward("eager")), expected)


def _calls_of(name, run):
    """Returns how often `run` calls a method of this name."""
    found = []

    def count(frame, event, function):
        if event == "c_call" and getattr(function, "__name__", "") == name:
            found.append(function)

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return len(found)


def _embedding(x):
    weight = torch.nn.Parameter(torch.eye(4))
    return [weight], lambda: torch.nn.functional.embedding(torch.tensor([1, 2]), weight).sin().sum()


def _compiled_positions(x):
    """A compiled function whose backward takes the positions that forward has checked."""
    weight = torch.nn.Parameter(torch.eye(4))
    classes = torch.tensor([1, 2])

    def loss():
        chosen = torch.nn.functional.embedding(classes, weight) @ weight
        return torch.nn.functional.cross_entropy(chosen, classes) + weight[classes].sin().sum()

    return [weight], minidynamo.compile(loss, backend="aot_eager")


def _compiled_layers(x):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.LayerNorm(4))
    compiled = minidynamo.compile(model, backend="aot_eager")
    return [*model.parameters()], lambda: compiled(x).square().mean()


def _factorized(x):
    weight = torch.nn.Parameter(2 * torch.eye(4))
    return [weight], lambda: torch.linalg.cholesky(weight).sum()


@pytest.mark.parametrize(
    "make, copies", [(_embedding, 0), (_compiled_positions, 0), (_compiled_layers, 0), (_factorized, 1)]
)
def test_a_gradient_is_copied_before_an_addition_only_if_the_backward_may_raise(make, copies):
    parameters, loss = make(torch.ones(2, 4))
    graphs = CompileCounterWithBackend("aot_eager")

    def step():
        found = loss()
        with captured_backward(graphs):
            return _calls_of("clone", found.backward)

    for _ in range(3):
        step()
    compiled = graphs.frame_count
    assert (step(), graphs.frame_count) == (copies, compiled)
    expected = torch.autograd.grad(loss(), parameters)
    torch.testing.assert_close([p.grad for p in parameters], [4 * gradient for gradient in expected])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("layouts", [(True, True), (True, False), (False, True)])
def test_sparse_gradients_are_added_as_in_eager(backend, layouts):
    def trained(block):
        weight = torch.ones(4, 2, requires_grad=True)
        for step, is_sparse in enumerate(layouts, start=1):
            with block():
                found = torch.nn.functional.embedding(torch.tensor([1, step]), weight, sparse=is_sparse)
                (found.sum() * step).backward()
        return weight.grad

    expected, made = trained(contextlib.nullcontext), trained(lambda: captured_backward(backend))
    assert made.layout is expected.layout and torch.equal(made.to_dense(), expected.to_dense())
