"""Transforms of torch.func around each other: derivatives per sample, second derivatives, inner loops; and errors.

torch.compile 2.13 raises an internal error for `vmap(hessian(f))`.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

import minidynamo
from minidynamo import compat
from minidynamo.graph.torch_settings import settings
from tests.end_to_end.programs import rows_of

# Torch scripts its own derivatives when the first is requested.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
    pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice"),
]


def cubic(a):
    return (a**3).sum() * a[0].exp()


def waves(a):
    return (a.sin() * a).sum()


def curve(a):
    return torch.stack([a[0] * a[1], a[2].sin(), (a * a).sum()])


def _linearized(x):
    value, push = linearize(cubic, x[0])
    return value, push(x[1]), push(x[2])


PROGRAMS = {
    "vmap of hessian": lambda x: vmap(hessian(cubic))(x).sum(0),
    "vmap of hessian over columns": lambda x: vmap(hessian(waves), in_dims=1)(x),
    "vmap of hessian and jacobian": lambda x: vmap(lambda a: (hessian(waves)(a), jacfwd(curve)(a)))(x),
    "vmap of jacfwd": lambda x: vmap(jacfwd(curve))(x),
    "vmap of jacfwd of jacfwd": lambda x: vmap(jacfwd(jacfwd(curve)))(x),
    "vmap of jacrev of jacrev": lambda x: vmap(jacrev(jacrev(curve)))(x),
    "jacfwd of jacrev": lambda x: jacfwd(jacrev(cubic))(x[0]),
    "jacrev of jacfwd": lambda x: jacrev(jacfwd(cubic))(x[0]),
    "jvp of vmap": lambda x: jvp(vmap(cubic), (x,), (x * 2,)),
    "jvp of vmap of grad": lambda x: jvp(vmap(grad(cubic)), (x,), (x * 2,)),
    "jvp of jvp": lambda x: jvp(lambda y: jvp(cubic, (y,), (y,))[1], (x[0],), (x[1],)),
    "jvp of grad": lambda x: jvp(grad(cubic), (x[0],), (x[1],)),
    "vmap of jvp of grad": lambda x: vmap(lambda a: jvp(grad(cubic), (a,), (a,))[1])(x),
    "vmap of grad_and_value": lambda x: vmap(grad_and_value(cubic))(x),
    "vmap of vjp": lambda x: vmap(lambda a: vjp(curve, a)[1](a))(x),
    "hessian of vmap": lambda x: hessian(lambda y: vmap(cubic)(y).sum())(x[:2]),
    "linearize": _linearized,
}


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    return [tensor for item in items for tensor in tensors(item)]


def outcome(program, x, parameters=()):
    """Returns the results of a program and the gradients of a loss."""
    x = x.clone().requires_grad_()
    results = tensors(program(x))
    loss = sum((result.square().sum() for result in results), torch.zeros(()))
    return [result.detach() for result in results], torch.autograd.grad(loss, [x, *parameters], allow_unused=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients_are_those_of_eager(name, backend):
    torch.manual_seed(0)
    compiled = minidynamo.compile(PROGRAMS[name], backend=backend)
    for _ in range(2):
        x = torch.randn(3, 3)
        expected, before = outcome(PROGRAMS[name], x), thread_state()
        torch.testing.assert_close(outcome(compiled, x), expected, rtol=1e-4, atol=1e-4)
        assert thread_state() == before


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def at(self, parameters, x):
        return functional_call(self.layers, parameters, (x,)).squeeze(-1)

    def loss(self, parameters, x):
        return (self.at(parameters, x) - x.sum(-1)).square().mean()

    def laplacian(self, x):
        parameters = dict(self.layers.named_parameters())
        return vmap(lambda y: hessian(lambda z: self.at(parameters, z))(y).diagonal().sum())(x)

    def inner_loop(self, x):
        parameters = dict(self.layers.named_parameters())
        gradients = grad(self.loss)(parameters, x)
        updated = {name: value - 0.1 * gradients[name] for name, value in parameters.items()}
        return self.loss(updated, x * 2)

    def per_sample(self, x):
        parameters = {name: value.detach() for name, value in self.layers.named_parameters()}
        return vmap(grad(self.loss), in_dims=(None, 0))(parameters, x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", ["laplacian", "inner_loop", "per_sample"])
def test_networks(name, backend):
    torch.manual_seed(0)
    network = Network()
    program = getattr(network, name)
    parameters = () if name == "per_sample" else tuple(network.parameters())
    if name == "per_sample":
        plain, program = program, lambda x: (x, plain(x))
    compiled = minidynamo.compile(program, backend=backend)
    for _ in range(2):
        x = torch.randn(5, 3)
        expected, before = outcome(program, x, parameters), thread_state()
        torch.testing.assert_close(outcome(compiled, x, parameters), expected, rtol=1e-4, atol=1e-4)
        assert thread_state() == before


# Errors


def thread_state():
    return (
        settings(),
        compat.forward_ad["_current_level"],
        torch._C._functorch.get_interpreter_stack(),
        torch._C._is_fwd_grad_enabled(),
        torch._C._dispatch_tls_local_include_set().raw_repr(),
        torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        compat.torch_dispatch_mode_count(),
        compat.torch_function_mode_count(),
    )


class Failing:
    def runs_out_of_range(x, i):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return x[i] * 2

    def in_inference_mode(x, i):
        with torch.inference_mode():
            return x[i] * 2

    def wrong_shape_in_vmap(x, i):
        return vmap(lambda row: row @ x)(x)

    def wrong_shape_in_jvp(x, i):
        return jvp(lambda row: row @ torch.ones(7, 2), (x,), (x,))

    def index_in_a_hessian(x, i):
        return vmap(hessian(lambda row: row[i].square().sum()))(x)

    def own_error_in_a_hessian(x, i):
        def function(row):
            if i.item() > 3:
                raise IndexError("too large")
            return row.sin().sum()

        return vmap(hessian(function))(x)

    def forward_derivative(x, i):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x)
            return torch.autograd.forward_ad.unpack_dual(dual[i]).tangent


FAILING = rows_of(Failing)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", FAILING)
def test_an_error_leaves_the_thread_as_it_was(program, backend):
    compiled = minidynamo.compile(program, backend=backend)
    before = thread_state()
    for requires_grad in (False, True):
        x = torch.ones(4, 3, requires_grad=requires_grad)
        with pytest.raises((IndexError, RuntimeError)) as eager:
            program(x, torch.tensor([9]))
        with pytest.raises(eager.type) as error:
            compiled(x, torch.tensor([9]))
        assert "INTERNAL ASSERT" not in str(error.value)
        assert thread_state() == before
        del eager, error
        assert thread_state() == before
        torch_works()


def torch_works():
    x = torch.ones(3, requires_grad=True)
    x.sin().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(vmap(hessian(waves))(torch.ones(2, 3)), hessian(waves)(torch.ones(3)).expand(2, 3, 3))
    assert jvp(torch.sin, (torch.zeros(2),), (torch.ones(2),))[1].tolist() == [1, 1]


@pytest.mark.provokes_failures
@pytest.mark.parametrize("place", ["trace", "autograd", "codegen"])
def test_a_failure_of_a_compile_leaves_the_thread_as_it_was(place, monkeypatch):
    """The compiler fails under its own transforms, forward derivatives, modes and settings."""

    def fail(*args, **kwargs):
        torch._C._functorch._grad_increment_nesting()
        torch.autograd.forward_ad.enter_dual_level()
        torch._C._dispatch_tls_set_dispatch_key_excluded(torch._C.DispatchKey.ADInplaceOrView, True)
        raise ValueError("fails here")

    if place == "trace":
        monkeypatch.setattr("minidynamo.tracer.frames.interpreter.Frame.step", fail)
    elif place == "autograd":
        monkeypatch.setattr("minidynamo.autograd.trace.joint._CheckingInterpreter.run", fail)
    else:
        monkeypatch.setattr("minidynamo.codegen.compile_graph.lower_graph", fail)
    before = thread_state()
    compiled = minidynamo.compile(lambda x: x.sin() * 2, backend="native", on_error="eager")
    x = torch.ones(3, requires_grad=True)
    compiled(x).sum().backward()
    assert thread_state() == before
    torch.testing.assert_close(x.grad, 2 * torch.ones(3).cos())
    torch_works()
