"""The table of functions with scalar arguments agrees with torch."""

import inspect

import pytest
import torch

from minidynamo.graph.scalar_arguments import DRAWS, functions, scalar_arguments_of


@pytest.mark.parametrize("function", [f for f in functions() if inspect.isfunction(f)], ids=lambda f: f.__name__)
def test_parameters_are_those_of_the_function(function):
    known = scalar_arguments_of(function)
    names = [*inspect.signature(function).parameters]
    assert known is not None and list(known.names) == names[: len(known.names)]
    assert {*known.numbers} <= {*names}


@pytest.mark.parametrize("name", [f for f in functions() if isinstance(f, str)])
def test_methods_are_those_of_tensors(name):
    known = scalar_arguments_of(name)
    assert known is not None and {*known.numbers} <= {*known.names} and callable(getattr(torch.Tensor, name))


def test_what_is_not_known():
    assert (
        scalar_arguments_of(torch.arange) is None
        and scalar_arguments_of([]) is None
        and scalar_arguments_of("view") is None
    )
    assert all(scalar_arguments_of(name) for name in DRAWS)


def test_arguments_by_name():
    known = scalar_arguments_of("normal_")
    assert known is not None and known.named((1, 2), {"std": 3}) == {"self": 1, "mean": 2, "std": 3}


def test_ints_of_integer_tensors_stay_ints():
    known = scalar_arguments_of(torch.sub)
    assert known is not None and known.varies("alpha", True, [torch.ones(1)]) and not known.varies("other", False, [])
    assert not known.varies("alpha", True, [torch.arange(1)]) and known.varies("alpha", False, [torch.arange(1)])
