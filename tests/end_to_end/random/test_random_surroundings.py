"""Random programs equal eager while the module around them changes from call to call."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
from hypothesis import given, settings

import minidynamo
from minidynamo.observe.comparison import walk
from tests.end_to_end.random.own_failures import RANDOM, own_failures
from tests.end_to_end.random.random_python import inputs, other_inputs
from tests.end_to_end.random.random_surroundings import observed, surrounded_programs

pytestmark = pytest.mark.filterwarnings("ignore")


def described(value):
    """Returns the visible state of a value itself; its contents are compared separately."""
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.numel() else None
        grad = None if not value.is_leaf or value.grad is None else value.grad.tolist()
        facts = (type(value).__name__, value.dtype, tuple(value.shape), strides, value.requires_grad, value.is_leaf)
        return (*facts, str(value.detach().tolist()), str(grad))
    if isinstance(value, int | float | str | bytes | torch.dtype | None):
        return type(value).__name__, repr(value)
    return type(value).__name__


def seen(root):
    """Returns all values reachable from `root`, and the values that are the same object or share memory."""
    found = dict(walk(root))
    first: dict = {}
    facts = {}
    for path, value in found.items():
        facts[path] = described(value)
        if isinstance(value, torch.Tensor | list | dict | set) or type(value).__module__ == "random_program":
            facts[path, "same object"] = first.setdefault(id(value), path)
        if isinstance(value, torch.Tensor):
            facts[path, "same memory"] = first.setdefault(("memory", value.untyped_storage().data_ptr()), path)
    return facts


def call(names, program, make, seed, backward):
    """Returns the outcome of a call."""
    torch.manual_seed(seed)
    args = make()
    result = error = None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            result = program(*args)
        except Exception as raised:
            error = (
                type(raised).__name__,
                str(raised),
                type(raised.__cause__).__name__,
                type(raised.__context__).__name__,
            )
    if backward and error is None:
        tensors = [v for _, v in walk({"result": result}) if isinstance(v, torch.Tensor) and v.requires_grad]
        tensors = list({id(v): v for v in tensors}.values())
        try:
            torch.autograd.backward(tensors, [torch.ones_like(v) for v in tensors]) if tensors else None
        except RuntimeError as raised:
            error = "backward", str(raised)[:40]
    facts = seen({"args": args, "result": result, "module": observed(names)})
    return {"error": error, "printed": out.getvalue(), **facts}


def history(program, compile_it):
    """Returns the outcomes of all calls, each after its change of the module."""
    torch.manual_seed(0)
    names = program.build()
    function = compile_it(names["program"])
    torch.set_grad_enabled(True)
    try:
        for number, change in enumerate(program.changes):
            changed = None
            try:
                exec(change, names)
            except Exception as error:
                changed = type(error).__name__
            # Leaves of the module keep their gradients; tensors computed from leaves are differentiated once.
            make = inputs if number % 3 < 2 else other_inputs
            yield {"changed": changed, **call(names, function, make, number, backward=number % 2 == 0)}
    finally:
        torch.set_grad_enabled(True)


def differences(program, backend="eager", **options):
    """Returns the differences from eager, and minidynamo's own failures."""
    expected = list(history(program, lambda function: function))
    with own_failures() as found:
        compiled = history(program, lambda f: minidynamo.compile(f, backend=backend, recompile_limit=64, **options))
        for number, (wanted, actual) in enumerate(zip(expected, compiled, strict=True)):
            keys = [key for key in {**wanted, **actual} if wanted.get(key) != actual.get(key)]
            found += [f"call {number}: {k}: eager {wanted.get(k)}, compiled {actual.get(k)}" for k in keys[:4]]
            if keys:
                break
    return found


@settings(max_examples=5, **RANDOM)
@given(program=surrounded_programs())
def test_programs_in_changing_modules_equal_eager(program):
    assert differences(program) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=1500, **RANDOM)
@given(program=surrounded_programs())
def test_many_programs_in_changing_modules_equal_eager(program):
    assert differences(program) == []
