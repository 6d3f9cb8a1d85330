"""Programs that compute with sizes and numbers equal eager while these change from call to call."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
from hypothesis import given, settings

import minidynamo
from tests.end_to_end.random.own_failures import RANDOM, own_failures
from tests.end_to_end.random.random_sizes import SizesProgram, arguments, programs

pytestmark = pytest.mark.filterwarnings("ignore")


def shown(value):
    """Returns all visible state of a value, as text: classes, layouts and all bits."""
    if isinstance(value, torch.Tensor):
        layout = tuple(value.shape), tuple(value.stride()), value.dtype, value.requires_grad
        return f"{layout} {value.detach().flatten().tolist()}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(shown, value))})"
    if isinstance(value, dict):
        return str([(shown(key), shown(item)) for key, item in value.items()])
    return f"{type(value).__name__} {value!r}"


def plain_opaque(value):
    return value + 1


def observed(fn, surroundings, args):
    """Returns the outcome of a call: its result or the class of its exception, text, arguments and environment
    afterwards."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            result = shown(fn(*args))
        except Exception as error:
            result = type(error).__name__
    box, log = surroundings["box"], surroundings["log"]
    return result, text.getvalue(), shown(list(args)), shown(log), shown([box.n, box.f])


def differences(program: SizesProgram, backend="eager", dynamic=None):
    """Returns the differences from eager, call by call, and minidynamo's own failures."""
    eager, built = program.build(plain_opaque), program.build(minidynamo.disable(plain_opaque))
    compiled = minidynamo.compile(built, backend=backend, dynamic=dynamic, recompile_limit=64)
    with own_failures() as found:
        for call in program.calls:
            expected = observed(eager, eager.__globals__, arguments(call))
            actual = observed(compiled, built.__globals__, arguments(call))
            found += [f"{call}\n  eager {e}\n  ours  {a}" for e, a in zip(expected, actual, strict=True) if e != a]
    return found


@pytest.mark.parametrize("dynamic", [None, True])
@settings(max_examples=10, **RANDOM)
@given(program=programs())
def test_programs_with_changing_sizes_equal_eager(program, dynamic):
    assert differences(program, dynamic=dynamic) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("backend", "dynamic"), [("eager", None), ("eager", True), ("aot_eager", True)])
@settings(max_examples=700, **RANDOM)
@given(program=programs())
def test_many_programs_with_changing_sizes_equal_eager(program, backend, dynamic):
    assert differences(program, backend, dynamic) == []
