"""Whole models in the style of users: captured without a break, with eager's results and gradients."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from examples.models import ARCHITECTURES, llama
from minidynamo.errors import Unsupported
from minidynamo.testing import CompileCounterWithBackend, assert_same_as_eager, no_recompile

CAPTURED_WHOLE = [name for name, architecture in ARCHITECTURES.items() if not architecture.data_dependent]
DATA_DEPENDENT = [name for name, architecture in ARCHITECTURES.items() if architecture.data_dependent]

# An architecture for each kind of layer; the rest differs in Python code alone, which the backend does not see.
NATIVE = ["residual net", "Llama decoder", "LSTM cell", "diffusion step", "graph convolution"]

TRAINS_DIFFERENTLY = {"conv net", "residual net", "pre-norm transformer", "post-norm transformer", "vision transformer"}
TRAINS_DIFFERENTLY |= {"LSTM", "variational auto-encoder", "generative adversarial step", "graph convolution"}


def call(model, *args):
    return model(*args)


def model_and_inputs(name, *, training):
    architecture = ARCHITECTURES[name]

    def make():
        return architecture.make().train(training), *architecture.inputs()

    return make


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", CAPTURED_WHOLE)
def test_an_architecture_is_one_graph(name, training):
    make = model_and_inputs(name, training=training)
    assert_same_as_eager(call, make, calls=2, graphs=1, breaks=0, recompiles=0, fullgraph=True)


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_decisions_that_data_make_break_and_change_nothing(name):
    make = model_and_inputs(name, training=True)
    assert_same_as_eager(call, make, calls=2)
    with pytest.raises(Unsupported, match="MD215"):
        minidynamo.compile(call, backend="eager", fullgraph=True)(*make())


@pytest.mark.cpp
@pytest.mark.parametrize("name", NATIVE)
def test_native_code_computes_what_eager_does(name):
    make = model_and_inputs(name, training=True)
    assert_same_as_eager(call, make, backend="native", graphs=1, breaks=0, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CAPTURED_WHOLE)
def test_train_and_eval_are_two_versions_where_the_model_tells_them_apart(name):
    architecture = ARCHITECTURES[name]
    counter = CompileCounterWithBackend("eager")
    model = minidynamo.compile(architecture.make(), backend=counter)
    inputs = architecture.inputs()
    with torch.no_grad():
        model(*inputs)
        model.eval()(*inputs)
        assert counter.frame_count == (2 if name in TRAINS_DIFFERENTLY else 1)
        with no_recompile():
            model.train()(*inputs)
            model.eval()(*inputs)


def test_generation_compiles_the_prompt_and_one_step():
    torch.manual_seed(0)
    model = llama.Llama()
    prompt = torch.randint(64, (2, 4))
    expected = llama.generate(model, prompt, 8)
    counter = CompileCounterWithBackend("eager")
    torch.testing.assert_close(llama.generate(minidynamo.compile(model, backend=counter), prompt, 8), expected)
    assert counter.frame_count == 2
