"""Programs that read `grad_fn`: compared with None, its name, and its hooks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.testing import CompileCounterWithBackend
from tests.end_to_end.programs import Programs, leaf, vector

programs = Programs()
BACKENDS = ["eager", "aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)]
test_same_as_eager = programs.test(*BACKENDS)


@programs(leaf, graphs=1)
class OneGraph:
    def compared_with_none(x):
        y = x.sin()
        return y * 2 if y.grad_fn is not None and x.grad_fn is None else y * 3

    def its_name(x):
        y = x.sin()
        return y.exp(), y.grad_fn.name(), (y * y).grad_fn.name()

    @programs(lambda: (torch.randn(3, requires_grad=True) * 2,))
    def of_an_argument(x):
        return x.sin() if x.grad_fn is not None else x.cos(), x.grad_fn.name()

    @programs(vector, graphs=1)
    def without_a_gradient(x):
        y = x.sin()
        return y if y.grad_fn is None else -y

    def kept(x):
        y = x.sin()
        node = y.grad_fn
        return y.exp(), node is y.grad_fn, node is (y + 1).grad_fn


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_argument_with_another_history_compiles_again(backend):
    def program(x):
        return x * 2 if x.grad_fn is not None and x.grad_fn.name() == "SinBackward0" else x * 3

    counter = CompileCounterWithBackend(backend)
    f = minidynamo.compile(program, backend=counter, fullgraph=True)
    x = torch.rand(3, requires_grad=True)
    for given in (x, x.sin(), x.cos(), x.detach(), x.sin()):
        torch.testing.assert_close(f(given), program(given))
    assert counter.frame_count == 4


def test_the_node_that_is_returned_is_the_node_of_the_result():
    def program(x):
        y = x.sin()
        return y, y.grad_fn

    y, node = minidynamo.compile(program, backend="aot_eager", fullgraph=True)(torch.rand(3, requires_grad=True))
    assert node is y.grad_fn


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_of_the_node_of_a_custom_function(backend):
    def program(x, seen):
        y = Triple.apply(x.sin())
        y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + 1,))
        handle = y.grad_fn.register_prehook(lambda outputs: seen.append(outputs[0].clone()))
        y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 2,))
        return y.exp(), handle

    results = []
    for f in (program, minidynamo.compile(program, backend=backend, fullgraph=True)):
        x, seen = torch.ones(3, requires_grad=True), []
        y, handle = f(x, seen)
        y.sum().backward(retain_graph=True)
        handle.remove()
        y.sum().backward()
        results.append((x.grad, seen))
    torch.testing.assert_close(results[1], results[0])


def test_hooks_of_other_nodes_end_the_graph():
    def program(x):
        y = x.sin()
        y.grad_fn.register_hook(lambda inputs, outputs: None)
        return y

    with pytest.raises(minidynamo.errors.Unsupported, match=r"MD212 .*`register_hook\(\)` of .* SinBackward0"):
        minidynamo.compile(program, backend="eager", fullgraph=True)(torch.ones(3, requires_grad=True))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x, mask=None):
        y = self.outer(self.inner(x).relu())
        return y, y * 2


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("needs_grad", [True, False])
def test_BS_modules_hooks_of_nested_modules(backend, needs_grad):
    counter = CompileCounterWithBackend(backend)

    def train(compile_it):
        torch.manual_seed(0)
        m, calls = Block(), []

        def after(name, factor):
            def hook(module, inputs, outputs):
                calls.append((name, [g is not None for g in (*inputs, *outputs)]))
                return tuple(g if g is None else g * factor for g in inputs) if inputs[0] is not None else None

            return hook

        def before(module, grads):
            calls.append(("before", [g is not None for g in grads]))
            return tuple(g if g is None else g + 0.5 for g in grads)

        m.register_full_backward_hook(after("block", 2.0))
        m.inner.register_full_backward_hook(after("inner", 3.0))
        m.outer.register_full_backward_pre_hook(before)
        m.outer.register_full_backward_hook(after("outer", 0.5))
        f, x = compile_it(m), torch.rand(2, 4, requires_grad=needs_grad)
        for _ in range(2):
            y, z = f(x, None)
            (y.sum() + z.pow(2).sum()).backward()
        return [x.grad, *(p.grad for p in m.parameters())], calls

    expected = train(lambda m: m)
    made = train(lambda m: minidynamo.compile(m, backend=counter, fullgraph=True))
    torch.testing.assert_close(made[0], expected[0])
    assert made[1] == expected[1] and counter.frame_count == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_hooks_on_nodes_of_torch_run_after_a_graph_break(backend):
    calls = []

    def on_a_result(x):
        y = x.sin()
        y.grad_fn.register_hook(lambda inputs, outputs: calls.append("hook"))
        return y * 2

    def on_an_argument(x):
        x.grad_fn.register_prehook(lambda outputs: calls.append("prehook"))
        return x * 2

    def gradient(fn):
        x = torch.ones(4, requires_grad=True)
        fn(x * 1).sum().backward()
        return x.grad

    for fn in (on_a_result, on_an_argument):
        torch.testing.assert_close(gradient(minidynamo.compile(fn, backend=backend)), gradient(fn))
    assert calls == ["hook", "hook", "prehook", "prehook"]


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_old_hooks_of_modules_run_after_a_graph_break():
    calls, module = [], nn.Linear(2, 2)
    module.register_backward_hook(lambda *args: calls.append(1))
    minidynamo.compile(module, backend="eager")(torch.ones(1, 2)).sum().backward()
    assert calls == [1] and module.weight.grad is not None
