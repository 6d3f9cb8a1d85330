"""Functions that autograd must see are called unchanged; a hook gets its function later."""

from __future__ import annotations

import torch
from torch import fx

from minidynamo.graph.autograd_calls import (
    BackwardState,
    differentiates_again,
    fill_hook,
    gradients,
    is_autograd_call,
    make_parameter,
    registers_hook,
    replace_data,
    require_grad,
    reserve_hook,
    retain_grad,
    returns_several,
    watched_tensors,
)


def test_a_hook_that_is_filled_later():
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    reserve_hook(y, "register_hook", state := BackwardState(), "hook0")
    z = y * 3
    fill_hook(state.hook0, lambda g: g * 10)
    z.sum().backward()
    assert x.grad.tolist() == [60, 60]


def test_a_hook_that_is_never_filled_or_is_removed():
    x = torch.ones(2, requires_grad=True)
    state = BackwardState()
    reserve_hook(x, "register_hook", state, "hook0")
    reserve_hook(x, "register_post_accumulate_grad_hook", state, "hook1")
    state.hook1.remove()
    fill_hook(state.hook1, lambda g: g * 10)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_a_hook_of_a_tensor_that_is_gone():
    state = BackwardState()
    reserve_hook(torch.ones(2, requires_grad=True), "register_hook", state, "hook0")
    fill_hook(state.hook0, lambda g: g * 10)
    assert state.hook0.hooks_dict_ref() is None


def test_leaves():
    x = torch.ones(2)
    p = make_parameter(x, True)
    assert p.is_leaf and p.requires_grad and p.data_ptr() == x.data_ptr()
    assert require_grad(x, True) is x and x.requires_grad
    y = x * 2
    retain_grad(y)
    y.sum().backward()
    assert y.grad.tolist() == [1, 1]
    z = torch.zeros(3)
    replace_data(z, x.detach())
    assert z.data_ptr() == x.data_ptr() and z.shape == (2,)


def test_which_tensors_a_call_looks_at():
    graph = fx.Graph()
    x, y, state = map(graph.placeholder, ("x", "y", "backward_state"))
    grad = graph.call_function(gradients, ([y], [x, y]), {"create_graph": True})
    hook = graph.call_function(reserve_hook, (x, "register_hook", state, "hook0"))
    made = graph.call_function(make_parameter, (x, True))
    grad.meta["example_value"] = (torch.ones(2), torch.ones(2))
    assert (
        watched_tensors(grad) == [x, y]
        and watched_tensors(hook) == [x]
        and watched_tensors(made) == watched_tensors(x) == []
    )
    assert [is_autograd_call(node) for node in graph.nodes] == [False, False, False, True, True, True]
    assert [*filter(registers_hook, graph.nodes)] == [hook]
    assert [differentiates_again(node) for node in (grad, hook)] == [True, False]
    assert [returns_several(node) for node in (grad, hook, made)] == [True, False, False]
