"""`generate()` of compiled decoders: the tokens of eager, with a growing cache and with a static cache."""

from __future__ import annotations

import copy

import pytest
import torch

import minidynamo
from benchmarks.library_worker import tokens
from tests.models.cases import CASES, rotating
from tests.models.training import seed

pytestmark = [pytest.mark.cpp, pytest.mark.filterwarnings("ignore")]

DECODERS = ["gpt2", "gptneox", "opt", "llama", "mistral", "qwen3", "gemma2", "phi3", "mixtral", "olmo2"]
CACHES = ["dynamic", "static"]


def generated(model, cache):
    """Returns tokens after two prompts; the second prompt is longer, and its first sequence is padded."""
    found = []
    for number, length in enumerate((5, 7)):
        seed(number)
        prompt = {"input_ids": tokens(2, length), "attention_mask": torch.ones(2, length, dtype=torch.long)}
        prompt["attention_mask"][0, :number] = 0
        found.append(model.generate(**prompt, max_new_tokens=6, do_sample=False, cache_implementation=cache))
    return found


@pytest.mark.parametrize(("name", "cache"), rotating([(name, cache) for name in DECODERS for cache in CACHES]))
def test_generated_tokens_are_eagers(name, cache, md_reset):
    model = CASES[name].make().eval()
    # Large weights: the tokens of a new model hardly depend on its prompt.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    expected = generated(copy.deepcopy(model), cache)
    assert expected[0][0].unique().numel() > 3
    for backend in ("eager", "native"):
        compiled = copy.deepcopy(model)
        compiled.forward = minidynamo.compile(compiled.forward, backend=backend)
        for actual, wanted in zip(generated(compiled, cache), expected):
            assert actual.tolist() == wanted.tolist(), backend
        assert minidynamo.stats(compiled.forward).graphs
        minidynamo.reset()
