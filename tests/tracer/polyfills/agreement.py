"""Compares polyfills with their originals, without a tracer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from minidynamo.tracer.records.registry import POLYFILLS

Cases = dict[Callable[..., Any], list[tuple[Any, ...]]]
"""Originals, then argument tuples on which the twin must agree; a dict at the end holds keyword arguments."""
NUMBERS = [3, 1, 4, 1, 5, 9, 2, 6]
WORDS = ["pear", "fig", "apple", "date"]


def calls_of(cases: Cases) -> Iterator[Any]:
    for original, calls in cases.items():
        for number, call in enumerate(calls):
            kwargs = call[-1] if call and isinstance(call[-1], dict) and all(type(k) is str for k in call[-1]) else {}
            args = call[:-1] if kwargs else call
            yield pytest.param(original, args, kwargs, id=f"{original.__qualname__}-{number}")


def same_results(cases: Cases) -> Callable[..., None]:
    """Returns a test that polyfills agree with their originals."""

    @pytest.mark.parametrize("original, args, kwargs", list(calls_of(cases)))
    def test(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        expected = original(*args, **kwargs)
        actual = POLYFILLS[id(original)](*args, **kwargs)
        assert type(actual) is type(expected) and actual == expected

    return test


def same_changes(cases: Cases) -> Callable[..., None]:
    """Returns a test of methods that change their first argument: the changed argument and the result must agree."""

    @pytest.mark.parametrize("original, args, kwargs", list(calls_of(cases)))
    def test(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for_original, for_twin = copy.deepcopy(args), copy.deepcopy(args)
        expected = original(*for_original, **kwargs)
        actual = POLYFILLS[id(original)](*for_twin, **kwargs)
        assert actual == expected
        assert for_twin == for_original
        assert (actual is for_twin[0]) == (expected is for_original[0])

    return test
