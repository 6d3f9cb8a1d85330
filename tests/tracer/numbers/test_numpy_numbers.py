"""Varying numpy numbers become inputs like Python's numbers, and numpy's results stay numpy's."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

import minidynamo

FLOATS = np.linspace(0.1, 0.9, 6)
INTS = np.arange(2, 8)
X = torch.linspace(-1, 1, 12)

PROGRAMS = {
    "operand": (lambda x, a: (x * a, a + x, x.add_(x, alpha=a)), FLOATS),
    "single precision": (lambda x, a: (x * (1 - a) / (a * 2 + 1), a - 1), FLOATS.astype(np.float32)),
    "converted": (lambda x, a: x * float(a) + a.item() * x[: int(a * 10)].sum(), FLOATS),
    "whole": (lambda x, n: (x[:n] * n, x[n], x[n:, None], n // 2, -n, n << 1), INTS),
    "of math": (lambda x, a: x * math.sqrt(1 - a) + math.floor(a), FLOATS),
    "of numpy": (lambda x, a: (x * np.sqrt(1 - a), np.maximum(a, 2), a**2), FLOATS),
    "beside Python's": (lambda x, a: x * (0.5 * a + 3) / 2**a, FLOATS),
    "probability": (lambda x, a: torch.nn.functional.dropout(x, a, training=False), FLOATS),
    "of numpy's functions": (lambda x, a: (x * np.clip(a, 0.2, 0.8), np.round(a, 1)), FLOATS),
    "in two parts": (lambda x, a: (x * np.frexp(a)[0], np.modf(a * 9)), FLOATS),
    "of numpy, of Python's": (lambda x, a: (x * np.cos(a * np.pi), np.hypot(a, 2), np.exp(a) + 1), FLOATS.tolist()),
    "of numpy, of Python's ints": (lambda x, n: (x * np.sqrt(n), np.power(2.0, n) * x), INTS.tolist()),
    "made of Python's": (lambda x, a: (x * np.float64(a), np.float32(a) * a, np.float16(a)), FLOATS.tolist()),
    "made of numpy's": (lambda x, a: (x * np.float32(a), np.float64(a) * a), FLOATS),
    "kept": (lambda x, a: ({"rate": a, "next": a * 0.5}, x * a), FLOATS),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_two_versions_serve_all(name, backend):
    program, values = PROGRAMS[name]
    compiled = minidynamo.compile(program, backend=backend, fullgraph=True)
    for value in values:
        expected, found = program(X.clone(), value), compiled(X.clone(), value)
        same(found, expected)
    assert compiled.stats.graphs == 2


@pytest.mark.parametrize("name", ["operand", "single precision", "whole", "of numpy", "of numpy, of Python's"])
def test_one_version_serves_all_that_are_said_to_vary(name):
    program, values = PROGRAMS[name]
    compiled = minidynamo.compile(program, backend="eager", fullgraph=True, dynamic=True)
    for value in values:
        same(compiled(X.clone(), value), program(X.clone(), value))
    assert compiled.stats.graphs == 1


def same(found, expected):
    if isinstance(expected, tuple | dict):
        pairs = zip(found, expected) if isinstance(expected, tuple) else zip(found.values(), expected.values())
        for one, other in pairs:
            same(one, other)
    else:
        assert type(found) is type(expected)
        torch.testing.assert_close(found, expected)


def test_a_comparison_is_compiled_for_each_answer() -> None:
    compiled = minidynamo.compile(lambda x, a: x * a if a > 0.5 else x + a, backend="eager")
    for value in FLOATS:
        torch.testing.assert_close(compiled(X, value), X * value if value > 0.5 else X + value)
    assert compiled.stats.graphs == 3
    assert "relation `(float(a)) > 0.5`" in compiled.why()


def test_where_numpy_warns_each_value_has_a_version() -> None:
    """Python's division would raise: the divisor is a numpy number."""
    compiled = minidynamo.compile(lambda x, a, b: (x * 2, a / b), backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for value in FLOATS:
            _, quotient = compiled(X, value, np.float64(0))
            assert quotient == np.inf and type(quotient) is np.float64


def test_another_class_of_number_is_another_version() -> None:
    compiled = minidynamo.compile(lambda x, a: (x * a, a * 3), backend="eager")
    for value in (*FLOATS[:3], 0.3, np.float32(0.7), np.int64(4)):
        found, tripled = compiled(X, value)
        torch.testing.assert_close(found, X * value)
        assert type(tripled) is type(value * 3) and tripled == value * 3
