"""Hooks that become a part of the backward graph, and hooks that must run eagerly."""

from __future__ import annotations

import types

import pytest
import torch

import minidynamo
from minidynamo.graph.autograd_calls import inlined_hook
from minidynamo.testing import AotEagerAndRecordGraphs

BACKENDS = ["eager", "aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)]


def returned_as_well(x):
    y = x.sin()
    c = x * 2
    y.register_hook(lambda g: g + c)
    return y.cos(), c


def beside_another_result(x):
    y = x.sin()
    c = x.exp()
    y.register_hook(lambda g: g + c)
    return y.cos(), (x * 3) * y.detach()


def on_a_result(x):
    y = x.sin()
    c = x.exp()
    y.register_hook(lambda g: g + c)
    return y, y.cos()


def assigned_later(x):
    y = x.sin()
    c = x * 2
    y.register_hook(lambda g: g + c)
    c = x * 3
    return y.cos(), y.exp()


def read_by_another_function(x):
    y = x.sin()
    c = x.exp()
    y.register_hook(lambda g: g * c)

    def change():
        nonlocal c
        c = torch.zeros(())

    return y.cos(), y.exp(), change


def with_layout(x):
    y = x.sin()
    c = x.exp()
    y.register_hook(lambda g: g + c if g.is_contiguous() else g * 7)
    return y.cos().t(), y.exp()


def with_a_handle(x):
    y = x.sin()
    c = x.exp()
    handle = y.register_hook(lambda g: g + c)
    return y.cos(), y.exp(), handle.remove


def with_both_results(x):
    y = x.sin()
    c = x.exp()
    y.register_hook(lambda g: g + c)
    y.register_hook(lambda g: torch.relu(g) * y)
    return y.cos(), y.exp()


@pytest.mark.parametrize(
    ("program", "is_inlined"),
    [
        (returned_as_well, False),
        (beside_another_result, False),
        (on_a_result, False),
        (assigned_later, False),
        (read_by_another_function, False),
        (with_layout, False),
        (with_a_handle, False),
        (with_both_results, True),
    ],
)
@pytest.mark.parametrize("used", [[0], [1], [0, 1]])
def test_BS_3_a_hook_is_a_part_of_the_graph_where_nothing_can_see_it(program, is_inlined, used):
    counter, found = AotEagerAndRecordGraphs(), []
    for f in (program, minidynamo.compile(program, backend=counter, fullgraph=True)):
        x = torch.linspace(0.1, 1, 6).view(2, 3).requires_grad_()
        results = f(x)
        for change in results[2:]:
            change()
        sum(results[k].sum() for k in used).backward()
        found.append(x.grad)
    torch.testing.assert_close(*found, rtol=0, atol=0)
    (graph,) = counter.graphs
    assert any(node.target is inlined_hook for node in graph.graph.nodes) == is_inlined


@pytest.mark.parametrize("backend", BACKENDS)
def test_BS_3_gradients_of_gradients_go_through_a_hook(backend):
    def fn(x):
        y = x.sin()
        c = y + 1
        y.register_hook(lambda g: g * g * c)
        return y.exp()

    found = []
    for f in (fn, minidynamo.compile(fn, backend=backend, fullgraph=True)):
        x = torch.linspace(0.1, 1, 5, requires_grad=True)
        (first,) = torch.autograd.grad(f(x).sum(), [x], create_graph=True)
        found += [[first, *torch.autograd.grad(first.sum(), [x])]]
    torch.testing.assert_close(*found)


SETTINGS = types.ModuleType("settings")


def by_grad_mode(x):
    y = x.sin()
    y.register_hook(lambda g: g * 2 if torch.is_grad_enabled() else g * 3)
    return y * y


def by_requires_grad(x):
    y = x.sin()
    y.register_hook(lambda g: g * 2 if g.requires_grad else g * 3)
    return y * y


def without_grad(x):
    def hook(g):
        with torch.no_grad():
            return g * g

    y = x.sin()
    y.register_hook(hook)
    return y * y


def with_a_new_tensor(x):
    y = x.sin()
    y.register_hook(lambda g: g * torch.zeros(1).element_size())
    return y * y


def by_a_setting(x):
    y = x.sin()
    y.register_hook(lambda g: g * SETTINGS.scale)
    return y * y


@pytest.mark.parametrize("program", [by_grad_mode, by_requires_grad, without_grad, with_a_new_tensor, by_a_setting])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_reads_settings_when_backward_runs(backend, program):
    found = []
    for f in (program, minidynamo.compile(program, backend=backend, fullgraph=True)):
        for create_graph in (False, True):
            SETTINGS.scale = 1.0
            x = torch.linspace(0.1, 1, 5, requires_grad=True)
            loss = f(x).sum()
            SETTINGS.scale = 2.0
            torch.set_default_dtype(torch.float64)
            try:
                (first,) = torch.autograd.grad(loss, [x], create_graph=create_graph)
            finally:
                torch.set_default_dtype(torch.float32)
            found.append([first, *(torch.autograd.grad(first.sum(), [x]) if create_graph else [])])
    torch.testing.assert_close(found[:2], found[2:])
