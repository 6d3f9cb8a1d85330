"""Owns fake inputs for a trace that begins anew: with symbols of its own, which have the values of one call.

What a trace decides on symbols holds for every later trace on them. Torch's formulas for some derivatives of gradients
decide all sizes, so these are traced once for each. Which trace serves which call is the business of `derivatives.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.functional.value_keys import Symbols, numbers_in
from minidynamo.autograd.graph.numbers import is_symbolic, key, known
from minidynamo.autograd.trace.tensor_index import let_have_symbols
from minidynamo.fake.mode import FakeTensorMode


def renewed(
    flat: Sequence[Any], symbols: Symbols, numbers: Mapping[Any, Any]
) -> tuple[list[Any], dict[Any, Any]] | None:
    """The fake inputs `flat` with new `symbols`, of which a call has `numbers`, and the new symbol for each old one.

    None where that cannot be done: a number is no size, a symbol has no value, or a tensor is none of plain numbers.
    """
    found = {symbol for value in flat for _, _, number in numbers_in(value) for symbol in _symbols(number)}
    if not found <= numbers.keys() or not all(type(numbers[symbol]) is int for symbol in found):
        return None
    if not all(map(_is_plain, flat)):
        return None
    kinds, source = compat.symbolic().DimDynamic, compat.symbolic().NamedSource
    mode = FakeTensorMode()
    let_have_symbols(mode)
    env: Any = mode.shape_env
    made = {
        symbol: env.create_symbol(numbers[symbol], source("_".join(map(str, symbols[symbol]))), kinds.DYNAMIC)
        for symbol in sorted(found, key=str)
    }

    def anew(number: Any) -> Any:
        if not is_symbolic(number):
            return known(number)
        expr = key(number)
        return env.create_symintnode(expr.xreplace(made), hint=int(expr.xreplace(dict(numbers))))

    return [_anew(value, anew, mode) for value in flat], made


def _symbols(number: Any) -> set[Any]:
    return key(number).free_symbols if is_symbolic(number) else set()


def _is_plain(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return not isinstance(value, torch.SymFloat | torch.SymBool)
    special = value.is_conj() or value.is_neg() or value.is_inference() or value.storage_offset()
    return value.layout is torch.strided and not special


def _anew(value: Any, number: Callable[[Any], Any], mode: FakeTensorMode) -> Any:
    if not isinstance(value, torch.Tensor):
        return number(value)
    with mode, torch.no_grad():
        sizes, strides = [*map(number, value.shape)], [*map(number, value.stride())]
        made = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    made.requires_grad_(value.requires_grad)
    with mode, torch.enable_grad():
        return made if value.is_leaf else made.view_as(made)
