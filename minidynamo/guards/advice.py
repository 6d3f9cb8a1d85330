"""Owns the advice in messages about recompiles: what the user can change so that a guard holds again.

The rows of `guard.py` choose among the texts.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import torch

from minidynamo.core.directives import declared
from minidynamo.guards.source import InstanceAttr, Local, Result, Source
from minidynamo.guards.tensors import TensorFacts, differences, facts_of

# Replaces the actual value where nothing can be read from the source.
MISSING = object()

WITH_AND_WITHOUT = "With and without this value there is a version each; no more follow."
ONE_KEY = "With and without this key there is a version each; no more follow."
SAME_CLASS = "Set attributes of objects and classes up before the first call, and keep them."
SEPARATE = "Pass separate tensors or containers in each call, or the same one in each."
SIZES_VARY = "A size that varies is symbolic from its second value on; 0 and 1 have versions of their own."
NUMBERS_VARY = "A number that varies is an input from its second value on, unless the program needs its value."
_FOR_TENSORS = {
    "dtype": "Each dtype has a version: convert the tensor before the call if one will do.",
    "device": "Each device has a version: move the tensor before the call if one will do.",
    "rank": "Each number of dimensions has a version: pass tensors of one rank.",
    "stride": "Each memory layout has a version: pass x.contiguous() where the layout differs.",
    "requires_grad": "Tensors with and without gradient have a version each: pass x.detach() "
    "where no gradient is needed.",
}


def for_tensor(source: Source, facts: TensorFacts, actual: Any) -> str:
    """Returns the fix for another tensor, by the first difference; "" for the general fix."""
    if actual is None:
        return "With and without this argument there is a version each; no more follow."
    if not issubclass(type(actual), torch.Tensor):
        return ""
    actual_facts = facts_of(actual)
    names = differences(facts, actual_facts)
    is_rank = "shape" in names and len(actual_facts.shape) != len(facts.shape)
    if "shape" in names and not is_rank and any(not declared(actual)[dim].varies for dim in _changed(actual, facts)):
        return "With mark_static each size has a version: leave it out."
    return _FOR_TENSORS.get("rank" if is_rank else (names or [""])[0], "")


def _changed(actual: torch.Tensor, facts: TensorFacts) -> list[int]:
    """Returns the declared dimensions whose size is another one than expected."""
    return [dim for dim in declared(actual) if facts.shape[dim] not in (None, actual.shape[dim])]


def for_object(source: Source, expected: object, actual: Any) -> str:
    """Returns the fix for another object; "" for the general fix."""
    if actual is MISSING:
        return ""
    if (expected is None) is not (actual is None):
        return WITH_AND_WITHOUT
    if not issubclass(type(expected), (bool, enum.Enum)):
        return ""
    if isinstance(source, InstanceAttr) and source.name == "training":
        return "train() and eval() have a version each; no more follow."
    return "Each of its few values has a version; no more follow when all have been seen."


def for_number(source: Source, expected: object, actual: Any) -> str:
    """Returns the fix for another number; "" for a value of another kind."""
    if isinstance(source, Result):
        return "Set the state that it reports before the first call, and keep it."
    is_number = isinstance(expected, int | float | np.number)
    if is_number and type(actual) is not type(expected):
        return "Each class of value has a version: pass numbers of one class."
    return NUMBERS_VARY * is_number


def for_length(source: Source, expected: int, actual: Any) -> str:
    """Returns the fix for another length of a dict, set or `*args`; "" for the general fix."""
    if issubclass(type(actual), (dict, set, frozenset)):
        if expected == 0:
            return "Empty and filled have a version each; no more follow if the number stays."
        return "Each number of entries has a version: keep to one, or read single keys."
    if isinstance(source, Local) and issubclass(type(actual), tuple):
        return "Each number of values has a version: pass as many in each call."
    return ""
