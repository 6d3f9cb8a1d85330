"""Effects of sharded training on modules: parameters with memory only during their use, hooks that fill the memory and
change gradients, and version counters that are reset. A single process simulates two workers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.testing import CompileCounterWithBackend

BACKENDS = ["eager", "aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)]


def nbytes(tensor):
    return tensor.untyped_storage().nbytes()


def all_gather(t):
    with torch.no_grad():
        return torch.cat([t] * 2).clone()


def reduce_scatter(t):
    with torch.no_grad():
        return t[: t.shape[0] // 2].clone()


class Sharded(nn.Module):
    """A linear layer that holds a part of its weight, and the whole weight only during its use."""

    def __init__(self, inputs=20, outputs=10, by_operator=False):
        super().__init__()
        self.by_operator = by_operator
        whole = nn.Linear(inputs, outputs, bias=False).weight.detach()
        self.s = nn.Parameter(reduce_scatter(whole))
        self.u = nn.Parameter(torch.zeros(outputs, inputs))
        self.u.untyped_storage().resize_(0)
        self.register_forward_pre_hook(lambda m, args: m.gather())
        self.register_forward_hook(lambda m, args, result: m.release())
        self.register_full_backward_pre_hook(lambda m, grads: m.gather())
        self.register_full_backward_hook(lambda m, inputs, grads: m.scatter())

    def forward(self, x):
        return nn.functional.linear(x, self.weight)

    def gather(self):
        self.u.untyped_storage().resize_(self.u.nbytes)
        if self.by_operator:
            torch.ops.minidynamo.copy_(self.u, all_gather(self.s))
        else:
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(self.u):
                self.u.copy_(all_gather(self.s))
        self.weight = self.u

    def release(self):
        self.weight = self.s
        self.u.untyped_storage().resize_(0)

    def scatter(self):
        grad = self.weight.grad
        self.release()
        self.weight.grad = None if grad is None else reduce_scatter(grad)


def four_steps(m, whole):
    """Returns the memory sizes of `whole` over time, and the results and gradients of four steps."""
    sizes, made = [], []
    for step in range(4):
        x = torch.rand(3, 20, generator=torch.Generator().manual_seed(step)).requires_grad_()
        y = m(x)
        sizes += map(nbytes, whole)
        y.sum().backward()
        sizes += map(nbytes, whole)
        made += [y.detach(), x.grad, *(None if p.grad is None else p.grad.clone() for p in m.parameters())]
    return sizes, made


def one_layer(by_operator=False):
    torch.manual_seed(0)
    m = Sharded(by_operator=by_operator)
    return m, [m.u]


def one_layer_by_operator():
    return one_layer(by_operator=True)


def two_layers():
    torch.manual_seed(0)
    m = nn.Sequential(Sharded(20, 12), nn.ReLU(), Sharded(12, 6))
    return m, [m[0].u, m[2].u]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [one_layer_by_operator, one_layer, two_layers])
def test_DP_1_DP_2_a_sharded_layer(make, backend):
    m, whole = make()
    sizes, expected = four_steps(m, whole)
    m, whole = make()
    counter = CompileCounterWithBackend(backend)
    others, made = four_steps(minidynamo.compile(m, backend=counter, fullgraph=True), whole)
    assert others == sizes == [0] * len(sizes)
    torch.testing.assert_close(made, expected)
    assert counter.frame_count == 2  # without the attribute `weight`, and with it


class ShardedForward(nn.Module):
    """The same with hooks of forward alone. A backward needs the weight gathered once more."""

    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.rand(5, 20))
        self.u = nn.Parameter(torch.zeros(10, 20))
        self.u.untyped_storage().resize_(0)
        self.register_forward_pre_hook(lambda m, args: m.gather())
        self.register_forward_hook(lambda m, args, result: m.release())

    def gather(self):
        self.u.untyped_storage().resize_(self.u.nbytes)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(self.u):
            self.u.copy_(all_gather(self.s))

    def release(self):
        self.u.untyped_storage().resize_(0)

    def forward(self, x):
        return nn.functional.linear(x, self.u).relu()


@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_is_one_graph_that_keeps_no_gathered_weight(backend):
    def step(compile_it):
        torch.manual_seed(0)
        m = ShardedForward()
        f, x = compile_it(m), torch.rand(3, 20, requires_grad=True)
        for _ in range(2):
            y = f(x)
            assert nbytes(m.u) == 0
            y.register_hook(lambda grad: m.gather())
            y.sum().backward()
            m.release()
        return [y, x.grad, m.u.grad], f

    made, f = step(lambda m: minidynamo.compile(m, backend=backend, fullgraph=True))
    torch.testing.assert_close(made, step(lambda m: m)[0])
    assert minidynamo.stats(f).graphs == 1
    if backend != "eager":
        assert not any(value.bytes == 10 * 20 * 4 and value.op != "input" for value in minidynamo.saved(f))


class Counting:
    """Counts the calls of a hook, and changes the gradients."""

    def __init__(self, shift):
        self.count = torch.zeros(())
        self.shift = shift

    def changed(self, grads):
        self.count.add_(1)
        return tuple(torch.sin(grad + self.shift) for grad in grads)


@pytest.mark.parametrize("backend", BACKENDS)
def test_DP_3_hooks_that_count_and_change_gradients(backend):
    counter = CompileCounterWithBackend(backend)

    def four(compile_it):
        torch.manual_seed(0)
        m, before, behind = nn.Linear(10, 10), Counting(1.2), Counting(3.4)
        m.register_full_backward_pre_hook(lambda m, grads: before.changed(grads))
        m.register_full_backward_hook(lambda m, inputs, grads: behind.changed(inputs))
        m = compile_it(m)
        x = torch.randn(4, 10, requires_grad=True)
        for _ in range(4):
            m(x).sum().backward()
        return [x.grad, m.weight.grad, m.bias.grad, before.count, behind.count]

    made = four(lambda m: minidynamo.compile(m, backend=counter, fullgraph=True))
    torch.testing.assert_close(made, four(lambda m: m))
    assert made[-2] == made[-1] == 4 and counter.frame_count == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interior_hook_with_an_intermediate_and_an_argument(backend):
    def program(x, z):
        y = x.sin()
        c = y + 1
        y.register_hook(lambda grad: grad * c.detach() + z)
        return (y * c).sum()

    def step(f):
        x, z = torch.arange(4.0).requires_grad_(), torch.full((4,), 0.5)
        f(x, z).backward()
        return x.grad

    torch.testing.assert_close(step(minidynamo.compile(program, backend=backend)), step(program))


@pytest.mark.parametrize("backend", BACKENDS)
def test_DP_5_a_count_of_writes_that_is_set_back(backend):
    @torch.no_grad()
    def program(w, x):
        x = x.sin()
        version = w._version
        w.copy_(x + 1)
        torch._C._autograd._unsafe_set_version_counter((w,), (version,))
        return w * 2, x

    counter = CompileCounterWithBackend(backend)
    f = minidynamo.compile(program, backend=counter, fullgraph=True)
    for writes in (3, 0, 1):
        w, x = torch.zeros(4), torch.rand(4)
        for _ in range(writes):
            w.add_(1)
        made, expected = f(w, x), program(torch.zeros(4), x)
        assert w._version == writes and torch.equal(w, expected[0] / 2)
        torch.testing.assert_close(made, expected)
    assert counter.frame_count == 1
