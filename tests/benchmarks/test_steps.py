from __future__ import annotations

import pytest
import torch

from benchmarks import steps
from benchmarks.steps import MODELS, inference, timed, training_step


def test_each_system_has_a_model_of_its_own(monkeypatch):
    monkeypatch.setattr(steps, "SYSTEMS", {"eager": lambda model: model, "minidynamo": lambda model: model})
    made = []

    def make():
        made.append(torch.nn.Linear(3, 4))
        return made[-1]

    samples = timed((make, lambda: (torch.randn(2, 3),)), training_step, training=True, rounds=2)
    assert {name: len(values) for name, values in samples.items()} == {"eager": 2, "minidynamo": 2}
    assert torch.equal(made[0].weight, made[1].weight) and made[0].weight.grad is None


@pytest.mark.parametrize("name", ["LSTM cell over 32 steps", "graph convolution, 1000 nodes"])
def test_models_take_their_inputs(name):
    make, inputs = MODELS[name]
    model = make()
    training_step(model, model, inputs())
    inference(model, model.eval(), inputs())
