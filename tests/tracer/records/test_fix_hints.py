"""Every break caused by library code comes with a suggested fix."""

from __future__ import annotations

import copy
import logging
import random
import weakref
import zlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import minidynamo
from minidynamo.errors import Unsupported
from minidynamo.tracer.records.fix_hints import HINTS_BY_CLASS, hint_for, hint_for_values

LAZY, LAYER, CLASSES = nn.LazyLinear(2), nn.Linear(4, 2), torch.tensor([[1]])
PROXY = weakref.proxy(LAYER)
ARRAY, ONE = np.ones(2), torch.ones(1)


def probabilities_of_other_data(x):
    ONE.data = x * 2  # so that the graph has no checks
    return torch.distributions.Categorical(logits=ONE, validate_args=True).probs


@pytest.mark.parametrize(
    ("program", "advice"),
    [
        (lambda x: torch.manual_seed(0), "Seed before"),
        (lambda x: torch.func.linearize(torch.sin, x), "torch.func.jvp"),
        (lambda x: zlib.crc32(b"a"), "outside of the compiled function"),
        (lambda x: weakref.proxy(LAYER).weight * x, "weakref.ref"),
        (lambda x: PROXY.weight * x, "weakref.ref"),
        (lambda x: logging.warning("a"), "Log outside"),
        (probabilities_of_other_data, "validate_args=False"),
        (lambda x: x[x > 0], "torch.where"),
        (lambda x: max(x.sum(), 0.0), "x.clamp(min=0)"),
        (lambda x: setattr(LAYER, "__dict__", {"x": x}), "vars(obj).update"),
        (lambda x: x[x.argmax() :], "index_select"),
        (lambda x: x.unique(), "keep the shape"),
        (lambda x: x * random.sample((1, 2), 1)[0], "Draw the numbers before"),
        (lambda x: torch.nn.functional.ctc_loss(x.view(1, 1, 4), CLASSES, (1,), (1,)), "after the compiled function"),
        (lambda x: copy.deepcopy(x[1:]), "clone()"),
        (lambda x: LAZY(x) + 1, "Call the lazy module once"),
        (lambda x: setattr(torch.nn.Linear, "own", 1), "Change it outside"),
        (lambda x: ExceptionGroup("a", [ValueError(), x]), "Make it outside"),
        (lambda x: x * float(ARRAY[1:].sum()), "from_numpy"),
        (lambda x: flex_attention(*[x.view(1, 1, 2, 2)] * 3), "torch.compile(flex_attention)"),
    ],
)
def test_a_break_says_what_to_write_instead(program, advice):
    with pytest.raises(Unsupported) as found:
        minidynamo.compile(program, backend="eager", fullgraph=True)(torch.ones(4))
    assert advice in found.value.diagnostic.fix
    assert "Variable" not in found.value.diagnostic.what  # an internal term of the tracer


def test_names_of_functions_and_methods():
    assert hint_for_values("Tensor.nonzero()") == hint_for_values("nonzero()")
    assert hint_for("manual_seed", "torch.random") == hint_for("fork_rng", "torch.random")
    assert "from_numpy" in HINTS_BY_CLASS["ndarray"]
