"""Owns the check of an operator's results against the fake implementation, and the list of failed operators.

Compiled code depends on the dtype, the sizes and the strides of results that it does not compute itself. For operators
that torch ships, only dtype and strides are checked; for others, everything.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import NoReturn

import torch

from minidynamo import compat
from minidynamo.compat import OpOverload
from minidynamo.core.events import notice
from minidynamo.core.names import Namespace
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, ResultDiffers, counted

_TRUSTED_NAMESPACES = compat.SHIPPED_NAMESPACES | {"minidynamo"}

Sizes = Sequence[int | None]
"""Sizes or strides; None for an unknown number."""

_found: set[str] = set()
# Every name ever added to `_found`; `forget_wrong_operators` does not clear it.
_ever_found: list[str] = []


def is_trusted(target: object) -> bool:
    """Returns whether sizes and device of a call's result need no check: torch ships the operator."""
    if isinstance(target, types.FunctionType):  # a function of minidynamo that calls a torch operator
        return target.__module__.startswith("minidynamo.compat.")
    return isinstance(target, OpOverload) and target.namespace in _TRUSTED_NAMESPACES


def is_found_wrong(op: OpOverload) -> bool:
    """Returns whether a result of the operator has differed from the fake implementation's."""
    return bool(_found) and op.name() in _found


def count_wrong_operators() -> int:
    """Returns the number of operators ever found wrong. Guards compare it."""
    return len(_ever_found)


def forget_wrong_operators() -> None:
    """Trusts all fake implementations again (used by `minidynamo.reset`)."""
    _found.clear()


@record(frozen=True)
class Promise:
    """A tensor result of an operator, as promised by the fake implementation."""

    #: the operator
    name: str
    #: sizes as Python text; None for a size without text
    shape: Sequence[str | None]
    #: strides as Python text; None for a stride without text
    stride: Sequence[str | None]
    dtype: torch.dtype
    device: torch.device
    #: whether torch ships the operator: only dtype and strides are checked
    trusted: bool = False
    #: whether a result of another dtype is converted, not refused
    converts: bool = False
    #: whether strides matter
    relays: bool = True

    def check(self, out: str, names: Namespace) -> list[str]:
        """Lists statements that check the tensor `out`, and correct the tensor or raise ResultDiffers."""
        dtype = names.constant(self.dtype, str(self.dtype).removeprefix("torch."))
        device = names.constant(self.device, str(self.device))
        terms = [f"{out}.dtype is not {dtype}"]
        if not self.trusted:
            terms += [f"{out}.layout is not {names.constant(torch.strided, 'strided')}", f"{out}.is_neg()"]
            terms.append(f"not {out}.is_cpu" if self.device.type == "cpu" else f"{out}.device != {device}")
            terms += _differs(f"{out}.shape", self.shape)
        if self.relays and not (self.trusted and [*self.stride] in ([], ["1"])):
            # Strides of dimensions of one element reach no address, and torch's fake tensors are careless with them.
            known = [None if size == "1" else stride for size, stride in zip(self.shape, self.stride)]
            terms += _differs(f"{out}.stride()", known)
        mend = names.constant(as_promised, "as_promised")
        arguments = [out, repr(self.name), _tuple(self.shape), _tuple(self.stride), dtype, device]
        arguments += ["trusted=True"] * self.trusted + ["converts=True"] * self.converts
        arguments += ["relays=False"] * (not self.relays)
        return [f"if {' or '.join(terms)}:", f"    {out} = {mend}({', '.join(arguments)})"]


def check_number_of(out: str, name: str, count: int, names: Namespace) -> list[str]:
    """Lists statements that raise ResultDiffers if the list `out` has a wrong number of tensors."""
    refuse = names.constant(refuse_number, "refuse_number")
    return [f"if len({out}) != {count}:", f"    {refuse}({name!r}, len({out}), {count})"]


def _differs(value: str, expected: Sequence[str | None]) -> list[str]:
    if None not in expected:
        return [f"{value} != {_tuple(expected)}"]
    several = [f"len({value}) != {len(expected)}"]
    return several + [f"{value}[{dim}] != {text}" for dim, text in enumerate(expected) if text is not None]


def _tuple(texts: Sequence[str | None]) -> str:
    return f"({', '.join(map(str, texts))}{',' if len(texts) == 1 else ''})"


def as_promised(
    result: torch.Tensor,
    name: str,
    shape: Sizes,
    stride: Sizes,
    dtype: torch.dtype,
    device: torch.device,
    *,
    trusted: bool = False,
    converts: bool = False,
    relays: bool = True,
) -> torch.Tensor:
    """Returns `result` with the promised strides, and, if `converts`, with the promised dtype; refuses other
    differences.

    Strides of dimensions with one element do not matter.
    """
    is_there = result.device.type == device.type and device.index in (None, result.device.index)
    is_like = result.layout is torch.strided and is_there and _fits(result.shape, shape)
    if not is_like or (result.dtype != dtype and not converts):
        actual = _described(result.shape, result.dtype, result.device, result.layout)
        _refuse(name, actual, _described(shape, dtype, device))
    if result.dtype != dtype:
        notice(_differing(name, f"{result.dtype}", f"{dtype}", "Each result is converted to the promised dtype."))
        result = result.to(dtype)
    result = result.resolve_neg()
    actual_strides = result.stride()
    if not relays or all(n <= 1 or want in (None, have) for n, have, want in zip(result.shape, actual_strides, stride)):
        return result
    if not trusted and "::" in name:  # without "::", `name` is a function of minidynamo, which calls torch's operators
        consequence = "Each result is copied into the promised layout."
        notice(_differing(name, f"strides {actual_strides}", f"strides {tuple(stride)}", consequence))
    return with_strides(result, tuple(have if want is None else want for have, want in zip(actual_strides, stride)))


def refuse_number(name: str, actual: int, wanted: int) -> NoReturn:
    """Raises ResultDiffers for a list of a wrong length."""
    _refuse(name, counted(actual, "tensor"), counted(wanted, "tensor"))


def with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Returns `tensor`, or a copy with `strides` if its own differ in a dimension of more than one element. The copy
    has version 0.
    """
    if all(have == want or n <= 1 for n, have, want in zip(tensor.shape, tensor.stride(), strides)):
        return tensor
    copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    distinct = tuple(slice(None) if stride else slice(1) for stride in strides)  # torch writes no expanded dimensions
    copy[distinct].copy_(tensor[distinct])
    if compat.version_of(copy) is not None:
        compat.set_versions([copy], [0])
    return copy


def _refuse(name: str, actual: str, wanted: str) -> NoReturn:
    if name not in _found:
        _found.add(name)
        _ever_found.append(name)
    consequence = "A call that can still run eagerly does so. From now on graphs end at the operator."
    diagnostic = _differing(name, actual, wanted, consequence)
    notice(diagnostic)
    raise ResultDiffers(diagnostic)


def _differing(name: str, actual: str, wanted: str, consequence: str) -> Diagnostic:
    return Diagnostic(
        "MD524",
        f"{name} returned {actual}, and its fake implementation promises {wanted}",
        why=f"Graphs are compiled for the promised result. {consequence}",
        fix=f'Correct the function that torch.library.register_fake("{name}") registers.',
    )


def _described(shape: Sizes, dtype: torch.dtype, device: torch.device, layout: torch.layout = torch.strided) -> str:
    sizes = ", ".join("?" if size is None else str(size) for size in shape)
    kind = "" if layout is torch.strided else f"{layout} ".removeprefix("torch.")
    return f"{kind}{str(dtype).removeprefix('torch.')}[{sizes}] on {device}"


def _fits(shape: Sizes, wanted: Sizes) -> bool:
    return len(shape) == len(wanted) and all(want in (None, have) for have, want in zip(shape, wanted))
