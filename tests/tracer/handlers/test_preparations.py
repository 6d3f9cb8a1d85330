"""Tests of minidynamo/tracer/handlers/preparations.py: what a library prepares in the first call costs no graph."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import minidynamo
from benchmarks.vision_operators import import_torchvision
from minidynamo.testing import no_recompile

SIZES = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture
def model() -> Any:
    import_torchvision()
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=2, pad_token_id=0))


def hidden_states(model: Any) -> list[torch.Tensor]:
    ids = torch.arange(1, 9).view(2, 4)
    results = model(input_ids=ids, labels=ids, output_hidden_states=True)
    results.loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    return [results.loss.detach(), *results.hidden_states, *gradients]


def test_hooks_for_hidden_states_are_installed_while_the_first_call_is_traced(model: Any) -> None:
    expected = hidden_states(copy.deepcopy(model))
    minidynamo.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(hidden_states(model), expected)
    with no_recompile():
        torch.testing.assert_close(hidden_states(model), expected)


def test_a_second_model_gets_hooks_of_its_own(model: Any) -> None:
    expected, second = hidden_states(copy.deepcopy(model)), copy.deepcopy(model)
    compiled = minidynamo.compile(hidden_states, backend="eager")
    for each in (model, second, model, second):
        torch.testing.assert_close(compiled(each), expected)
