"""Random programs of views and writes give eager's values, aliasing, gradients, and gradients of gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import minidynamo
from tests.end_to_end.random.own_failures import own_failures
from tests.end_to_end.random.random_tensors import Call, TensorProgram, Writer

# A run operation by operation triggers a notice, and is correct; torch warns of empty reductions.
pytestmark = pytest.mark.filterwarnings("ignore")


def observed(program: Any, call: Call) -> dict[str, Any] | None:
    """Returns the effects of a call, by kind; None when the call raises, or torch hides the history of a result."""
    torch.manual_seed(0)
    args, leaves = call.make()
    try:
        with torch.set_grad_enabled(call.grad_mode):
            results = program(*args, call.n)
        return facts(args, results) | gradients([*results, *args], leaves)
    except Exception:
        return None


def facts(args: list[torch.Tensor], results: list[torch.Tensor]) -> dict[str, Any]:
    """Returns values, layouts and version counters, and the tensors that are the same object or share memory."""
    tensors = {f"argument {i}": tensor for i, tensor in enumerate(args)}
    tensors |= {f"result {i}": tensor for i, tensor in enumerate(results)}
    first: dict[Any, str] = {}
    found: dict[str, Any] = {"random state": torch.get_rng_state()}
    for name, tensor in tensors.items():
        # Operations with different strides for dimensions of one element are listed in docs/differences.md.
        strides = [stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1] * bool(tensor.numel())
        layout = (strides, tensor.storage_offset(), tensor._version)
        found[name] = tensor.detach().clone()
        found[f"facts of {name}"] = (type(tensor), layout, first.setdefault(id(tensor), name))
        if tensor.numel():
            found[f"memory of {name}"] = first.setdefault((0, tensor.untyped_storage().data_ptr()), name)
    return found


def gradients(outputs: list[torch.Tensor], leaves: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns first and second derivatives, where they exist; the caller ignores derivatives that eager refuses."""
    outputs = list({id(one): one for one in outputs if one.requires_grad and one.grad_fn is not None}.values())
    if not outputs or not leaves:
        return {}
    weights = [torch.linspace(0.5, 1.5, one.numel()).reshape(one.shape).to(one.dtype) for one in outputs]
    try:
        first = torch.autograd.grad(outputs, leaves, weights, allow_unused=True, create_graph=True)
        found = {f"gradient {i}": one.detach() for i, one in enumerate(first) if one is not None}
        squares = [one.double().square().sum() for one in first if one is not None and one.requires_grad]
        second = torch.autograd.grad(sum(squares), leaves, allow_unused=True) if squares else ()
    except RuntimeError:
        return {"refused": torch.ones(())}
    return found | {f"second gradient {i}": one for i, one in enumerate(second) if one is not None and one.any()}


def differences(program: TensorProgram, backend: str, dynamic: bool | None = None) -> list[str]:
    """Returns the differences from eager in calls that eager can make, and minidynamo's own failures."""
    with own_failures() as found:
        eager, compiled = program.build(), minidynamo.compile(program.build(), backend=backend, dynamic=dynamic)
        for number, call in enumerate(program.calls):
            expected = observed(eager, call)
            if expected is None or "refused" in expected:
                continue
            actual = observed(compiled, call) or {}
            for name in [*expected, *(name for name in actual if name not in expected)]:
                if not same(expected.get(name), actual.get(name)):
                    found.append(f"call {number}: {name}: eager {expected.get(name)}, compiled {actual.get(name)}")
    return found


def same(expected: Any, actual: Any) -> bool:
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        return type(expected) is type(actual) and bool(expected == actual)
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return False
    tolerance = {torch.bfloat16: 5e-2, torch.float32: 1e-4}.get(expected.dtype, 1e-6)
    return torch.allclose(expected, actual, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("seed", range(8))
def test_a_random_program(seed):
    program = Writer(seed).program(calls=2)
    assert not differences(program, "aot_eager"), program


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("backend", "dynamic"), [("aot_eager", None), ("aot_eager", True), pytest.param("cpp", None, marks=pytest.mark.cpp)]
)
@pytest.mark.parametrize("first", range(1000, 1500, 100))
def test_many_random_programs(first, backend, dynamic):
    for seed in range(first, first + 100):
        program = Writer(seed).program(calls=4)
        assert not differences(program, backend, dynamic), program
