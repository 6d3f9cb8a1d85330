"""The table of functions that take plain numbers says what torch says of them."""

import inspect

import pytest
import torch

from minidynamo.graph.scalar_arguments import DRAWS, functions, hands_on, plain


@pytest.mark.parametrize("function", [f for f in functions() if inspect.isfunction(f)], ids=lambda f: f.__name__)
def test_parameters_are_those_of_the_function(function):
    known = plain(function)
    names = [*inspect.signature(function).parameters]
    assert known is not None and list(known.names) == names[: len(known.names)]
    assert {*known.numbers, *known.fixed} <= {*names}


@pytest.mark.parametrize("name", [f for f in functions() if isinstance(f, str)])
def test_methods_are_those_of_tensors(name):
    known = plain(name)
    assert known is not None and {*known.numbers} <= {*known.names} and callable(getattr(torch.Tensor, name))


def test_what_is_not_known():
    assert plain(torch.arange) is None and plain([]) is None and plain("view") is None
    assert all(plain(name) for name in DRAWS)


def test_arguments_by_name():
    known = plain("normal_")
    assert known is not None and known.named((1, 2), {"std": 3}) == {"self": 1, "mean": 2, "std": 3}


def test_ints_of_integer_tensors_stay_ints():
    known = plain(torch.sub)
    assert known is not None and known.varies("alpha", True, [torch.ones(1)]) and not known.varies("other", True, [])
    assert not known.varies("alpha", True, [torch.arange(1)]) and known.varies("alpha", False, [torch.arange(1)])


def test_functions_that_hand_numbers_on():
    assert hands_on(torch.nn.functional.multi_head_attention_forward) and not hands_on(torch.nn.functional.dropout)
