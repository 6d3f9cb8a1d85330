"""Backends written for torch.compile, given as callables: results and gradients equal eager's, call after call."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo import list_backends, lookup_backend
from torch._dynamo.backends.common import aot_autograd, fake_tensor_unsupported
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.shape_prop import ShapeProp

import minidynamo

pytestmark = pytest.mark.filterwarnings("ignore")

PROGRAMS = {
    "one input": lambda x, y: (x * 2).sin(),
    "two results": lambda x, y: (x @ y, (x - y).sum() * x.shape[0]),
    "list": lambda x, y: [item * item for item in [x, y]],
}


def outcomes(fn, seed, training):
    """Returns results and gradients of a call."""
    torch.manual_seed(seed)
    x, y = (torch.randn(4, 4, requires_grad=training) for _ in range(2))
    results = fn(x, y)
    results = [results] if isinstance(results, torch.Tensor) else [*results]
    if not training:
        return results
    gradients = torch.autograd.grad(sum(r.sum() for r in results), (x, y), allow_unused=True)
    return [*(r.detach() for r in results), *gradients]


def check(backend, training):
    for program in PROGRAMS.values():
        compiled = minidynamo.compile(program, backend=backend)
        for seed in range(2):
            expected, actual = (outcomes(fn, seed, training) for fn in (program, compiled))
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        assert compiled.stats.graphs == 1


# These need packages or further arguments, or fail with torch.compile, too (they script a GraphModule).
NOT_HERE = {
    "aot_eager_decomp_partition_with_mode",
    "aot_ts",
    "dynamo_accuracy_minifier_backend",
    "dynamo_minifier_backend",
    "openxla",
    "openxla_eval",
    "ts",
    "tvm",
}
REGISTERED = sorted({*list_backends(exclude_tags=())} - NOT_HERE)  # type: ignore[arg-type]


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "inductor" else ()) for n in REGISTERED]
)
def test_registered_backends(name, training):
    check(lookup_backend(name), training)


class Compiler:
    def __call__(self, gm, example_inputs, **options):
        return gm

    def compile(self, gm, example_inputs):
        return gm.forward


def with_options(options, gm, example_inputs):
    return torch.fx.Interpreter(gm).run


def traced(gm, example_inputs):
    return torch.jit.trace(gm, tuple(example_inputs))


def frozen(gm, example_inputs):
    return torch.jit.freeze(traced(gm.eval(), example_inputs))


def exported(gm, example_inputs):
    return torch.export.export(gm, tuple(example_inputs)).module()


@fake_tensor_unsupported
def on_real_tensors(gm, example_inputs):
    assert all(type(example) in (torch.Tensor, int) for example in example_inputs)
    gm(*example_inputs)
    return gm.forward


def with_example_data(gm, example_inputs):
    for example in example_inputs:
        example.detach().numpy()
    return lambda *args: [*gm(*args)]


def propagated(gm, example_inputs):
    ShapeProp(gm).propagate(*example_inputs)
    return copy.deepcopy(gm)


def forward_of(gm, example_inputs):
    return make_boxed_func(gm.forward)


BY_SHAPE = {
    "instance": Compiler(),
    "method": Compiler().compile,
    "partial": functools.partial(with_options, {"level": 3}),
    "partial instance": functools.partial(Compiler(), options={}),
    "traced": traced,
    "frozen": frozen,
    "exported": exported,
    "make_fx": lambda gm, example_inputs: make_fx(gm)(*example_inputs),
    "real tensors": on_real_tensors,
    "example data": with_example_data,
    "propagated": propagated,
    "boxed": lambda gm, example_inputs: make_boxed_func(torch.fx.Interpreter(gm).run),
    "torch.compile": lambda gm, example_inputs: torch.compile(gm, backend="eager"),
    "aot_autograd": aot_autograd(fw_compiler=forward_of),
    "aot_autograd, unboxed": aot_autograd(fw_compiler=lambda gm, example_inputs: gm.forward),
    "aot_module_simplified": lambda gm, example_inputs: aot_module_simplified(
        gm, example_inputs, fw_compiler=forward_of, bw_compiler=forward_of
    ),
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", BY_SHAPE)
def test_callables_by_shape(name, training):
    check(BY_SHAPE[name], training)


def test_a_backend_that_traces_is_compiled_for_one_size_at_a_time():
    program = lambda x: (x * 2).reshape(-1)  # noqa: E731
    compiled = minidynamo.compile(program, backend=traced)
    for size in (3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(size, 2)), program(torch.ones(size, 2)))
    assert compiled.stats.graphs == 3


def test_the_first_error_of_a_failing_backend_is_raised():
    calls = []

    def failing(gm, example_inputs):
        calls.append(type(example_inputs[0]))
        raise ValueError(f"failure {len(calls)}")

    with pytest.raises(minidynamo.errors.BackendError, match="failure 1"):
        minidynamo.compile(lambda x: x + 1, backend=failing)(torch.ones(2))
    assert len(calls) == 2 and calls[1] is torch.Tensor
