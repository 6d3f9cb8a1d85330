"""Random straight-line pointwise programs give eager's numbers, bit for bit, from both kernel printers."""

from __future__ import annotations

import itertools
import linecache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minidynamo.testing import assert_same_as_eager

DTYPES = [torch.float32, torch.bfloat16, torch.int64]
SHAPES = [(3, 5), (5,), (3, 1), ()]

# Operations whose result is exactly determined; any different rounding shows.
UNARY = ["torch.neg({0})", "torch.abs({0})", "torch.relu({0})", "torch.sign({0})", "{0}.to(torch.float32)"]
UNARY += ["torch.clamp({0}, -2, 3)", "{0} * 3", "{0} + 0.5", "{0} ** 2"]
BINARY = ["{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}", "torch.maximum({0}, {1})", "torch.minimum({0}, {1})"]
TERNARY = ["torch.where({0} > {1}, {1}, {2})", "torch.where({0} == {1}, {2}, {0})"]
TEMPLATES = {1: UNARY, 2: BINARY, 3: TERNARY}

_numbers = itertools.count()


@st.composite
def programs(draw):
    """Returns the source of a function of three tensors, and their shapes and dtypes."""
    names = ["x", "y", "z"]
    lines = []
    for _ in range(draw(st.integers(1, 8))):
        arity = draw(st.sampled_from([1, 2, 2, 3]))
        operands = [draw(st.sampled_from(names)) for _ in range(arity)]
        name = f"v{len(lines)}"
        lines.append(f"    {name} = {draw(st.sampled_from(TEMPLATES[arity])).format(*operands)}")
        names.append(name)
    results = draw(st.lists(st.sampled_from(names[3:]), min_size=1, max_size=2, unique=True))
    inputs = [(draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES))) for _ in range(3)]
    return "\n".join(["def program(x, y, z):", *lines, f"    return {', '.join(results)},", ""]), inputs


def build(source):
    """Returns the function that `source` defines, with its lines available to tracebacks."""
    filename = f"<random program {next(_numbers)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = {"torch": torch}
    exec(compile(source, filename, "exec"), namespace)
    return namespace["program"]


def numbers(shape, dtype):
    # Small integers and halves: they collide often, so that comparisons and ties are exercised.
    values = torch.randint(-6, 7, shape)
    return values if dtype is torch.int64 else (values / 2).to(dtype)


RANDOM = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
on_both_printers = pytest.mark.parametrize("backend", [pytest.param("cpp", marks=pytest.mark.cpp), "triton"])


@on_both_printers
@settings(max_examples=60, **RANDOM)
@given(program=programs())
def test_random_programs_equal_eager(backend, program):
    check(backend, program)


@pytest.mark.slow
@on_both_printers
@settings(max_examples=600, **RANDOM)
@given(program=programs())
def test_many_random_programs_equal_eager(backend, program):
    check(backend, program)


def check(backend, program):
    source, inputs = program
    assert_same_as_eager(
        build(source),
        lambda: tuple(numbers(shape, dtype) for shape, dtype in inputs),
        backend=backend,
        rtol=0,
        atol=0,
    )
