"""Tests of minidynamo/graph/tensor_hooks.py."""

from __future__ import annotations

import threading

import torch

from minidynamo.graph.tensor_hooks import hook_table, may_request, notice_hooks, unless_none

found = []


class Twice(torch.autograd.Function):
    """Returns two results; its backward checks which gradients are requested."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        found.append([may_request(tensor) for tensor in ctx.asked])
        return first if second is None else second


noticed = []
notice_hooks(Twice, lambda *what: noticed.append(what))


def call():
    found.clear()
    noticed.clear()
    x = torch.ones(2, requires_grad=True)
    y, z = Twice.apply(x)
    z.grad_fn.asked = [x, y]
    return x, y, z


def test_a_hook_is_called_with_gradients_only():
    seen = []
    hook = unless_none(seen.append)
    hook(None)
    hook(1)
    assert seen == [1] and unless_none(hook) is hook


def test_hooks_of_results_are_noticed_and_called_where_a_gradient_comes():
    _, y, z = call()
    seen = []
    handles = [y.register_hook(seen.append), z.register_hook(lambda gradient: seen.append("z"))]
    node, number, hooks = noticed[0]
    assert node is y.grad_fn and number == y.output_nr and list(hooks) == [handles[0].id]
    z.sum().backward(retain_graph=True)
    assert seen == ["z"]
    handles[0].remove()
    assert not hooks
    y.grad_fn.register_prehook(lambda given: None)
    assert noticed[-1][1] is None and len(noticed[-1][2]) == 1


def test_hooks_that_come_when_the_node_is_gone():
    """A hook whose node dies with the result may get its function at the end of the program."""

    class Once(Twice):
        pass

    nodes = []
    notice_hooks(Once, lambda *what: None, lambda hook, node, number: nodes.append(node) or unless_none(hook))
    result, _ = Once.apply(torch.ones(2, requires_grad=True))
    handle = result.register_hook(print)
    hooks = handle.hooks_dict_ref()
    assert nodes == [result.grad_fn]
    nodes.clear()
    del result, _
    hooks[handle.id] = len
    assert nodes == [] and hooks[handle.id] is len


def test_hooks_of_a_view_that_come_later():
    x = torch.ones(3, requires_grad=True)
    base = x * 2
    view = base[1:]
    base.mul_(2)  # the view has a new gradient function from now on
    hooks = hook_table(view)
    assert not hooks
    seen = []
    view.register_hook(seen.append)
    assert len(hooks) == 1 and hook_table(view) is hooks
    view.sum().backward()
    assert len(seen) == 1


def test_what_is_asked_for_in_this_thread_or_another():
    x, y, z = call()
    x.register_hook(lambda gradient: None)
    torch.autograd.grad(z.sum(), x, retain_graph=True)
    torch.autograd.grad(z.sum(), [y, x], retain_graph=True, allow_unused=True)
    edge = torch.autograd.graph.get_gradient_edge(y)
    z.sum().backward(inputs=[x], retain_graph=True)
    torch.autograd.grad(y.sum(), [edge, x])
    assert found == [[True, False], [True, True], [True, False], [True, True]]
    inner = []

    def from_outside(gradient):
        thread = threading.Thread(target=lambda: inner.append((may_request(x), may_request(y))))
        thread.start()
        thread.join()

    x, y, z = call()
    z.register_hook(from_outside)
    torch.autograd.grad(z.sum(), x)
    assert inner == [(True, False)]
    assert may_request(x)  # no request is visible
