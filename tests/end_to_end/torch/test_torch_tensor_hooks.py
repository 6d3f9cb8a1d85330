"""Hooks of tensors, on inputs and in the middle of a graph: their bodies run eagerly, or are a part of the graph."""

from __future__ import annotations

import operator
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import minidynamo
from minidynamo.testing import AotEagerAndRecordGraphs, CompileCounter, CompileCounterWithBackend
from tests.end_to_end.programs import Programs, leaf, vector

programs = Programs()
BACKENDS = ["eager", "aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)]
INDUCTOR = pytest.param("inductor", marks=[pytest.mark.cpp, pytest.mark.slow])
test_same_as_eager = programs.test(*BACKENDS)


class Value:
    val = 88.0


@programs(leaf)
class Cases:
    def on_an_input(x):
        x.register_hook(lambda g: g * 2)
        return x.sin()

    def in_the_middle(x):
        y = x.sin()
        y.register_hook(lambda g: g * 2)
        return y.cos() + x

    def behind_uses_of_the_tensor(x):
        y = x.sin()
        z = y.exp()
        y.register_hook(lambda g: g * 3 + z)
        return y * z

    def hooks_that_look_only(x):
        y = x * 2
        y.register_hook(lambda g: print("gradient", g.tolist()))
        return y.sin()

    def removed_again(x):
        y = x * 2
        handle = y.register_hook(lambda g: g * 100)
        x.register_hook(lambda g: g + 1)
        handle.remove()
        return y.sin()

    @programs(lambda: (torch.randn(3, 4, requires_grad=True),))
    def on_parts(x):
        first, *_ = x.unbind()
        first.register_hook(lambda g: g * 5)
        view = x.sum(0).view(2, 2)
        view.register_hook(lambda g: g.t())
        return first + 1, view.sin(), x[1] * first

    def on_the_result(x):
        y = x.sin()
        y.register_hook(lambda g: g * 2)
        return y

    def after_accumulation(x):
        def double(p):
            p.grad.mul_(2)

        x.register_post_accumulate_grad_hook(double)
        return x.sin()

    def retained(x):
        y = x.sin()
        z = y.exp()
        y.retain_grad()
        return z * y, y

    @programs(vector, graphs=1, breaks=1)
    def a_tensor_without_gradient(x):
        y = x * 1
        try:
            y.register_hook(lambda g: g)
        except RuntimeError as error:
            print(error)
        return y

    @programs(leaf, graphs=2, breaks=1)
    def on_a_tensor_that_was_written_to(x):
        y = x.sin()
        y.mul_(2)
        y.register_hook(lambda g: g * 7)
        return y.exp()

    @programs(leaf, graphs=1)
    def written_to_behind_the_hook(x):
        y = x * 3
        y.register_hook(lambda g: g * 7)
        y.mul_(2)
        return y.exp()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's code generator
@pytest.mark.parametrize("backend", [*BACKENDS, INDUCTOR])
def test_BS_1_a_hook_that_reads_an_object_and_the_graph(backend):
    counter = minidynamo.testing.CompileCounterWithBackend(backend)

    def fn(x, obj):
        y = x.sin()
        c = y + 1
        y.register_hook(lambda g: g + obj.val + c)
        return y.sin()

    compiled, obj = minidynamo.compile(fn, backend=counter, fullgraph=True), Value()
    for obj.val in (88, 89, 90, 99):
        grads = []
        for call in (fn, compiled):
            x = torch.ones(4, requires_grad=True)
            call(x, obj).sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(grads[1], grads[0])
    torch.testing.assert_close(grads[1], torch.full((4,), 54.8449), atol=1e-3, rtol=0)
    assert counter.frame_count == 1  # the hook reads its values when it runs


@pytest.mark.parametrize("backend", BACKENDS)
def test_BS_2_two_hooks_run_in_their_order(backend):
    def fn(x):
        y = x.sin()
        y.register_hook(lambda g: g + 1)
        y.register_hook(lambda g: g * 10)
        return 2 * y

    x = torch.ones(4, requires_grad=True)
    minidynamo.compile(fn, backend=backend, fullgraph=True)(x).sum().backward()
    torch.testing.assert_close(x.grad, 30 * torch.ones(4).cos())


def test_BS_3_operations_of_a_hook_are_in_the_backward_graph():
    counter = AotEagerAndRecordGraphs()

    @minidynamo.compile(backend=counter, fullgraph=True)
    def fn(x):
        y = x.sin()
        c = y + 1
        y.register_hook(lambda g: g + c + y)
        return y.sin()

    x = torch.ones(4, requires_grad=True)
    fn(x).sum().backward()
    (graph,), (backward,) = counter.graphs, counter.bw_graphs
    assert [str(node.target) for node in graph.graph.nodes if node.op == "placeholder"] == ["x"]
    first, *_, last = backward.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
    add = last.args[0]  # the gradient times the cosine of x
    assert add.target is add.args[0].target is torch.ops.aten.add.Tensor and add.args[0].args[0] is first
    sine = torch.ones(4).sin()
    assert torch.equal(x.grad, (sine.cos() + (sine + 1) + sine) * torch.ones(4).cos())


@pytest.mark.parametrize("backend", BACKENDS)
def test_BS_3_a_hook_that_runs_eagerly_reads_results_of_the_graph(backend):
    counter, obj = CompileCounterWithBackend(backend), Value()

    def fn(x, obj):
        y = x.sin()
        c = y + 1
        y.register_hook(lambda g: g + obj.val + c)
        return y.sin()

    x = torch.ones(4, requires_grad=True)
    with minidynamo.captured_backward("eager", fullgraph=True):
        minidynamo.compile(fn, backend=counter, fullgraph=True)(x, obj).sum().backward()
    assert x.grad.tolist() == pytest.approx([48.9016] * 4, abs=1e-3)
    (graph,) = counter.graphs
    assert [node.target for node in graph.graph.find_nodes(op="placeholder")] == ["x", "backward_state"]
    (output,) = graph.graph.find_nodes(op="output")
    result, c = output.args[0]
    assert (result.target, c.target) == ("sin", operator.add) and c.args[0] is result.args[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_BS_3_each_call_has_hooks_of_its_own(backend):
    def fn(x, obj, factor):
        y = x.sin()
        c = y * factor
        handle = y.register_hook(lambda g: g * obj.val + c)
        y.register_hook(lambda g: obj.seen.append(factor))
        return y.exp(), handle

    compiled, results = minidynamo.compile(fn, backend=backend, fullgraph=True), []
    for call in (fn, compiled):
        obj, inputs = Value(), [torch.full((size,), 0.5, requires_grad=True) for size in (4, 5, 6, 7)]
        obj.seen = []
        calls = [call(x, obj, factor) for x, factor in zip(inputs, (2.0, 3.0, 4.0, 5.0))]
        calls[2][1].remove()
        for (y, _), val in zip(calls[::-1], (1.0, 2.0, 3.0, 4.0)):
            obj.val = val
            y.sum().backward(retain_graph=True)
        calls[0][0].sum().backward()
        results.append(([x.grad for x in inputs], obj.seen))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_BS_3_threads_have_hooks_of_their_own(backend):
    @minidynamo.compile(backend=backend, fullgraph=True)
    def fn(x, obj):
        y = x * 2
        y.register_hook(lambda g: g * obj.val)
        return y.sin()

    def gradient(val):
        obj, x = Value(), torch.zeros(4, requires_grad=True)
        obj.val = val
        for _ in range(50):
            fn(x, obj).sum().backward()
        return x.grad.tolist()

    gradient(1.0)
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(gradient, (1.0, 2.0, 3.0, 4.0))] == [[100.0 * val] * 4 for val in (1, 2, 3, 4)]


def test_BS_3_nothing_keeps_the_hook_of_a_dead_call():
    @minidynamo.compile(backend="aot_eager", fullgraph=True)
    def fn(x, obj):
        y = x.sin()
        y.register_hook(lambda g: g * obj.val)
        return y.exp()

    obj, x = Value(), torch.ones(4, requires_grad=True)
    died = weakref.ref(obj)
    y = fn(x, obj)
    del obj
    assert died() is not None
    del y
    assert died() is None


def test_BS_3_a_graph_with_many_parameters():
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(10)))
    obj, counter = Value(), CompileCounterWithBackend("aot_eager")

    @minidynamo.compile(backend=counter, fullgraph=True)
    def fn(x):
        y = model(x.sin())
        y.register_hook(lambda g: g * obj.val)
        return y

    expected, state = model(torch.ones(4).sin()).sum(), [*model.parameters()]
    expected = [gradient * 88 for gradient in torch.autograd.grad(expected, state)]
    for _ in range(3):  # the guards read the parameters, and pass them on
        fn(torch.ones(4)).sum().backward()
        torch.testing.assert_close([parameter.grad for parameter in state], expected)
        model.zero_grad()
    (graph,) = counter.graphs
    assert graph.graph.find_nodes(op="placeholder")[-1].target == "backward_state" and counter.frame_count == 1


def test_BS_4_hooks_that_are_passed():
    counter = CompileCounter()

    def fn(x, hook):
        y = x.sin()
        y.register_hook(hook)
        return y.sin()

    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for hook in (lambda g: g + 1, lambda g: g * 2, lambda g: g - 3):
        grads = []
        for call in (fn, compiled):
            x = torch.ones(4, requires_grad=True)
            call(x, hook).sum().backward()
            grads.append(x.grad)
        assert torch.equal(*grads)
    assert counter.frame_count == 1  # the graph does not depend on the hook


@pytest.mark.parametrize("backend", BACKENDS)
def test_BS_5_defaults_of_a_hook(backend):
    counter = minidynamo.testing.CompileCounterWithBackend(backend)

    def fn(x, factor):
        y = x.sin()
        hook = lambda g, k=factor: g * k
        y.register_hook(hook)
        return y.sin()

    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for factor in (2.0, 3.0, 4.0):
        grads = []
        for call in (fn, compiled):
            x = torch.ones(4, requires_grad=True)
            call(x, factor).sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_BS_6_a_hook_that_is_removed(backend):
    @minidynamo.compile(backend=backend, fullgraph=True)
    def fn(x):
        y = x * 2
        handle = y.register_hook(lambda g: g * 10)
        handle.remove()
        return y

    x = torch.ones(4, requires_grad=True)
    fn(x).sum().backward()
    assert x.grad.tolist() == [2] * 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_BS_7_hooks_that_return_nothing_change_a_list_or_are_handed_out(backend):
    seen = []

    @minidynamo.compile(backend=backend, fullgraph=True)
    def fn(x):
        y = x * 2
        handle = y.register_hook(lambda g: seen.append(g))
        return y.sin(), handle

    for removed in (False, True):
        x = torch.ones(4, requires_grad=True)
        y, handle = fn(x)
        assert isinstance(handle, torch.utils.hooks.RemovableHandle)
        if removed:
            handle.remove()
        y.sum().backward()
        torch.testing.assert_close(x.grad, 2 * torch.full((4,), 2.0).cos())
        assert len(seen) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_BS_rules_a_hook_after_accumulation_returns_nothing(backend):
    def fn(x, z, seen):
        x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        z.register_post_accumulate_grad_hook(lambda p: None)
        return x.sin() * z

    compiled, results = minidynamo.compile(fn, backend=backend, fullgraph=True), []
    for f in (fn, compiled):
        x, z, seen = torch.ones(4, requires_grad=True), torch.full((4,), 3.0, requires_grad=True), []
        for _ in range(2):
            f(x, z, seen).sum().backward()
        results.append((x.grad, z.grad, seen))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("backend", BACKENDS)
def test_BS_rules_a_hook_after_accumulation_that_returns_something(backend):
    def fn(x):
        x.register_post_accumulate_grad_hook(lambda p: p.grad)
        return x * 2

    for f in (fn, minidynamo.compile(fn, backend=backend, fullgraph=True)):
        with pytest.raises(RuntimeError, match="should return None"):
            f(torch.ones(4, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_BS_8_a_hook_that_changes_the_size(backend):
    @minidynamo.compile(backend=backend, fullgraph=True)
    def fn(x):
        y = x * 2
        y.register_hook(lambda g: g[:2])
        return y.sin()

    with pytest.raises(RuntimeError, match="changed the size"):
        fn(torch.ones(4, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_tensor_without_a_gradient_takes_no_hook_in_the_words_of_torch(fullgraph):
    def fn(x):
        y = x * 2
        y.register_hook(lambda g: g)
        return y

    with pytest.raises(
        RuntimeError, match="cannot register a hook on a tensor that doesn't require gradient"
    ) as caught:
        minidynamo.compile(fn, backend="eager", fullgraph=fullgraph)(torch.ones(2))
    assert type(caught.value) is RuntimeError


def test_the_function_stands_where_users_find_it():
    hook = lambda g: g

    @minidynamo.compile(backend="eager", fullgraph=True)
    def fn(x):
        x.register_hook(hook)
        return x * 2

    x = torch.ones(2, requires_grad=True)
    fn(x)
    assert list(x._backward_hooks.values()) == [hook]
