"""Custom autograd Functions that are given modules, functions and objects, or read tensors from outside."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.autograd import Function

import minidynamo
from minidynamo.testing import assert_same_as_eager

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


class Recomputed(Function):
    """Keeps the input of a module, and calls the module again in backward, which fills its gradients."""

    @staticmethod
    def forward(ctx, x, module, activation, scale):
        ctx.module, ctx.activation, ctx.scale = module, activation, scale
        ctx.save_for_backward(x)
        return activation(module(x)) * scale

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            torch.autograd.backward(ctx.activation(ctx.module(x)) * ctx.scale, gradient)
        return x.grad, None, None, None


class WithWeight(Function):
    """Reads the parameter of a module; the gradient differs from the true one, so that a mix-up shows."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return x @ module.weight.t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.module.weight * 3, None


class Settings:
    BASE = 2.0

    def __init__(self, scale):
        self.scale = scale


class Configured(Function):
    @staticmethod
    def forward(ctx, x, settings, cls, function):
        ctx.settings = settings
        return function(x) * settings.scale * cls.BASE

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.settings.scale, None, None, None


def plus_one(x):
    return x + 1


SETTINGS = Settings(3.0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()

    def forward(self, x):
        y = Recomputed.apply(x.sin(), self.inner, torch.relu, 2.0)
        y = Configured.apply(WithWeight.apply(y, self.outer), SETTINGS, Settings, plus_one)
        return self.outer(y).cos()


@pytest.mark.parametrize("backend", BACKENDS)
def test_modules_and_objects_as_arguments(backend, monkeypatch):
    torch.manual_seed(0)
    model = Model()
    compiled = minidynamo.compile(model.forward, backend=backend, fullgraph=True)
    for scale, graphs in ((3.0, 1), (3.0, 1), (4.0, 2)):
        monkeypatch.setattr(SETTINGS, "scale", scale)
        results = []
        for call in (model, compiled):
            x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3).requires_grad_()
            y = call(x)
            y.sum().backward()
            results.append([y.detach(), x.grad, *(parameter.grad for parameter in model.parameters())])
            model.zero_grad()
        for expected, actual in zip(*results):
            torch.testing.assert_close(actual, expected)
        assert compiled.stats.graphs == graphs
        with torch.no_grad():
            model.inner.weight.mul_(1.5)  # the graph reads the parameters at each call
            model.outer.weight.mul_(0.5)


def test_another_object_is_compiled_again():
    compiled = minidynamo.compile(
        lambda x, settings: Configured.apply(x, settings, Settings, plus_one), backend="eager", fullgraph=True
    )
    settings = [Settings(2.0), Settings(2.0)]
    for each in settings:
        x = torch.ones(2, requires_grad=True)
        assert compiled(x, each).tolist() == [8, 8]
        torch.autograd.backward(compiled(x, each).sum())
        assert x.grad.tolist() == [2, 2]
    assert compiled.stats.graphs == 2


def test_objects_are_not_kept_alive():
    compiled = minidynamo.compile(
        lambda x, settings: Configured.apply(x, settings, Settings, plus_one), backend="eager", fullgraph=True
    )
    settings = Settings(2.0)
    compiled(torch.ones(2), settings)
    watch = weakref.ref(settings)
    del settings
    gc.collect()
    assert watch() is None


class Classes(Function):
    @staticmethod
    def forward(ctx, x, cls):
        return x * (2 if cls is float else 3)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_classes_of_numbers_arrive_as_classes(backend):
    assert_same_as_eager(lambda x: Classes.apply(x, float), lambda: (torch.ones(2),), backend=backend, graphs=1)


class ReadsSettings(Function):
    @staticmethod
    def forward(ctx, x):
        return x * SETTINGS.scale * SCALE

    @staticmethod
    def backward(ctx, gradient):
        return gradient * SETTINGS.scale


SCALE = 1.0


def changes_an_attribute(x, scale):
    SETTINGS.scale = scale
    return ReadsSettings.apply(x).sin()


def changes_a_global(x, scale):
    global SCALE
    SCALE = scale
    return ReadsSettings.apply(x).sin()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [changes_an_attribute, changes_a_global])
def test_changes_of_the_frame_before_the_call_are_seen(program, backend, monkeypatch):
    compiled = minidynamo.compile(program, backend=backend)
    for scale in (5.0, 6.0):
        results = []
        for call in (program, compiled):
            monkeypatch.setattr(SETTINGS, "scale", 3.0)
            monkeypatch.setitem(globals(), "SCALE", 1.0)
            x = torch.ones(2, requires_grad=True)
            y = call(x, scale)
            y.sum().backward()
            results.append((y.tolist(), x.grad.tolist()))
        assert results[0] == results[1]
    assert "it may read what the frame has changed before" in compiled.breaks()
