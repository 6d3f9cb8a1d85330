"""The demo's models train equally compiled and eager, and remain the same modules."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import minidynamo
from examples.models import ConvNet, Transformer
from minidynamo.testing import CompileCounterWithBackend, no_recompile

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


def train(model, steps):
    """Returns losses and final parameters of a few steps on synthetic digits."""
    torch.manual_seed(1)
    images, classes = torch.rand(16, 1, 8, 8), torch.randint(10, (16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        loss = functional.cross_entropy(model(images), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), [*model.parameters(), *model.buffers()]


@pytest.mark.parametrize("make", [ConvNet, Transformer])
@pytest.mark.parametrize("backend", BACKENDS)
def test_training_follows_eager(make, backend):
    torch.manual_seed(0)
    eager = make()
    torch.manual_seed(0)
    counter = CompileCounterWithBackend(backend)
    compiled = minidynamo.compile(make(), backend=counter)
    expected, expected_state = train(eager, 5)
    losses, state = train(compiled, 5)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    for mine, other in zip(state, expected_state):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1
    with no_recompile():
        train(compiled, 1)


def test_a_compiled_module_is_the_same_module():
    module = ConvNet()
    keys, parameters = list(module.state_dict()), list(module.parameters())
    compiled = minidynamo.compile(module, backend="eager")
    assert compiled is module
    assert type(compiled) is ConvNet
    assert list(compiled.state_dict()) == keys
    assert all(a is b for a, b in zip(compiled.parameters(), parameters))


def test_train_and_eval_are_two_versions():
    counter = CompileCounterWithBackend("eager")
    module = minidynamo.compile(ConvNet(), backend=counter)
    images = torch.rand(4, 1, 8, 8)
    module(images)
    module.eval()
    module(images)
    assert counter.frame_count == 2
    with no_recompile():
        module.train()
        module(images)
        module.eval()
        module(images)
