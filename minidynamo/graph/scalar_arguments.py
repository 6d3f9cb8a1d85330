"""Owns the table of scalar arguments: numbers taken by torch's functions that affect values, but no shape or structure.

torch takes such a number as a Python float, and would specialize a symbol. The tracer leaves a varying number in the
call, and the autograd stage computes the call as a whole (`autograd/trace/scalar_arguments.py`). The table has the
functions whose numbers training programs vary. Other functions take constants, except user-defined operators, whose
fake implementation shows the effect of their floats.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.nn import functional

from minidynamo import compat
from minidynamo.compat import FUSED_UPDATES, OpOverload, OpOverloadPacket
from minidynamo.core.records import record
from minidynamo.graph.autograd_calls import eager_operator

T = TypeVar("T")


@record(frozen=True)
class ScalarArguments:
    """The scalar arguments of a function."""

    #: parameter names, in order, up to the last parameter of interest
    names: tuple[str, ...]
    #: names of the scalar arguments
    numbers: Collection[str]
    #: template of the condition on the scalar argument under which calls are the same program; "" for none
    condition: str = ""

    def named(self, args: Sequence[T], kwargs: Mapping[str, T]) -> dict[str, T]:
        """Returns the present arguments by name."""
        return {**dict(zip(self.names, args)), **kwargs}

    def varies(self, name: str, is_int: bool, tensors: Sequence[torch.Tensor]) -> bool:
        """Returns whether a number for this parameter may vary between calls, in a call with these tensors.

        An int and a float may give different results together with tensors of integers, and without tensors.
        """
        if name not in self.numbers or not is_int:
            return name in self.numbers
        return bool(tensors) and all(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)


def scalar_arguments_of(function: Any) -> ScalarArguments | None:
    """Returns the entry of a function, or of the method with this name; None without an entry."""
    op = operator_of(function)
    if op is not None:
        return _of_operator(op)
    return _TABLE.get(function) if getattr(type(function), "__hash__", None) is not None else None


def operator_of(function: Any) -> OpOverload | None:
    """Returns the user-defined operator that a function is, or calls; None for torch's operators and ambiguous
    overloads.
    """
    function = eager_operator(function) or function
    if isinstance(function, OpOverloadPacket):
        overloads = function.overloads()
        function = getattr(function, overloads[0]) if len(overloads) == 1 else None
    if not isinstance(function, OpOverload) or function.namespace in ("aten", "prims", "prim", "minidynamo"):
        return None
    return function


def _of_operator(op: OpOverload) -> ScalarArguments | None:
    """Returns the entry of a user-defined operator: its float parameters. Each call must check that they affect values
    only.
    """
    schema, definition = compat.schema_of(op), compat.definition_of(op)
    if compat.fake_implementation_of(op) is None:
        return None
    if definition is None:  # without a definition, its derivative needs a second run
        refused = schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags
    else:
        refused = definition.casts
    floats = [arg.name for arg in schema.arguments if str(arg.type) in ("float", "Optional[float]", "List[float]")]
    return None if refused or not floats else ScalarArguments(tuple(a.name for a in schema.arguments), floats)


def functions() -> list[Any]:
    """Lists the functions, and method names, with entries."""
    return [*_TABLE]


def run_whole(function: Callable[..., Any], key: str) -> None:
    """Marks a function of a graph that takes all numbers as scalar arguments. It writes nothing and draws no random
    numbers; functions with equal `key` compute the same.
    """
    vars(function)[_KEY] = key


def key_of_whole(function: Any) -> str | None:
    """Returns the key of a function that takes all numbers as scalar arguments; None for other functions."""
    return getattr(function, _KEY, None)


_KEY = "key_of_whole"
_TABLE: dict[Any, ScalarArguments] = {}

# Method that fills a tensor with random numbers -> its numbers with their defaults.
DRAWS: dict[str, dict[str, Any]] = {
    "bernoulli_": {"p": 0.5},
    "exponential_": {"lambd": 1.0},
    "normal_": {"mean": 0.0, "std": 1.0},
    "uniform_": {"from": 0.0, "to": 1.0},
}


def _add(functions: Sequence[Callable[..., Any] | str], names: str, numbers: str, condition: str = "") -> None:
    _TABLE.update(dict.fromkeys(functions, ScalarArguments(tuple(names.split()), numbers.split(), condition)))


# If dropout drops nothing or everything, it returns the argument itself, or draws no number.
_add([functional.dropout], "input p training inplace", "p", "0 < {0} < 1")
for _method, _numbers in DRAWS.items():
    _add([_method], " ".join(["self", *_numbers]), " ".join(_numbers))
_add([functional.batch_norm], "input running_mean running_var weight bias training momentum", "momentum")
_add([functional.huber_loss], "input target reduction delta", "delta")
_add([functional.smooth_l1_loss], "input target size_average reduce reduction beta", "beta")
_add(
    [functional.cross_entropy],
    "input target weight size_average ignore_index reduce reduction label_smoothing",
    "label_smoothing",
)
_add([torch.pow, "pow", "pow_", operator.pow, operator.ipow], "input exponent", "input exponent")
_add([torch.lerp, "lerp", "lerp_"], "input end weight", "weight")
_add([torch.sub, torch.subtract, torch.rsub, "sub", "sub_"], "input other alpha", "alpha")
_add([torch.addmm, "addmm", "addmm_"], "input mat1 mat2 beta alpha", "beta alpha")
_add(FUSED_UPDATES, "self", "beta1 beta2 weight_decay eps momentum dampening lr_decay")
