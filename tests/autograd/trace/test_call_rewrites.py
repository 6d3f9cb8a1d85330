"""Tests of minidynamo/autograd/trace/call_rewrites.py: slices of a whole dimension with a symbolic size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import minidynamo

KEYS: dict[str, Any] = {
    "a column": (slice(None), 1),
    "rows of columns": (slice(0, None, 1), slice(1, 3)),
    "a new dimension": (None, slice(None), ..., 0),
    "by places": (slice(None), torch.tensor([0, 2])),
    "by a list": (slice(None), [0, 2]),
    "all": (slice(None), slice(None)),
    "alone": slice(None),
}


def read(x: torch.Tensor, key: Any) -> torch.Tensor:
    return x[key] * 2


def written(x: torch.Tensor, key: Any) -> torch.Tensor:
    made = x * 3
    made[key] = x[key]
    return made


@pytest.mark.parametrize(
    "key, program", [*((key, read) for key in KEYS), ("a column", written), ("by a list", written)]
)
def test_there_are_as_many_slices_as_where_sizes_are_numbers(key: str, program: Any) -> None:
    def of_key(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = program(x, KEYS[key])
        return result

    static, dynamic = (
        minidynamo.compile(of_key, backend="aot_eager", fullgraph=True, dynamic=dynamic) for dynamic in (False, True)
    )
    found = []
    for call in (of_key, static, dynamic):
        x = torch.arange(20.0).reshape(4, 5).requires_grad_()
        result = call(x)
        (gradient,) = torch.autograd.grad(result, x, result.detach().cos())
        found.append([result, gradient, torch.tensor([*result.stride(), *gradient.stride()])])
    for made in found[1:]:
        torch.testing.assert_close(made, found[0], rtol=0, atol=0)
    assert dynamic.code().count("aten.slice") == static.code().count("aten.slice")
