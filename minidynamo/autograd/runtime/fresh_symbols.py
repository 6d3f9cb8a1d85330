"""Owns fake inputs with fresh symbols, for traces independent of the decisions of earlier traces.

A decision of a trace about a symbol holds for every later trace with that symbol. Torch's formulas for some second
derivatives decide all sizes, so these derivatives are traced once per size. `derivatives.py` assigns traces to calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.functional.value_keys import Symbols, numbers_in
from minidynamo.autograd.graph.numbers import is_symbolic, key, known
from minidynamo.autograd.trace.tensor_index import add_shape_env
from minidynamo.fake.mode import FakeTensorMode


def with_fresh_symbols(
    flat: Sequence[Any], symbols: Symbols, numbers: Mapping[Any, Any]
) -> tuple[list[Any], dict[Any, Any]] | None:
    """Returns the fake inputs `flat` with a fresh symbol in place of each of `symbols`, and the fresh symbol of each
    old one. The fresh symbols have the values `numbers` of one call.

    None if impossible: a number is not an integer, a symbol has no value, or a tensor has a special layout.
    """
    found = {symbol for value in flat for _, _, number in numbers_in(value) for symbol in _symbols(number)}
    if not found <= numbers.keys() or not all(type(numbers[symbol]) is int for symbol in found):
        return None
    if not all(map(_is_plain, flat)):
        return None
    kinds, source = compat.symbolic().DimDynamic, compat.symbolic().NamedSource
    mode = FakeTensorMode()
    add_shape_env(mode)
    env: Any = mode.shape_env
    new_symbols = {
        symbol: env.create_symbol(numbers[symbol], source("_".join(map(str, symbols[symbol]))), kinds.DYNAMIC)
        for symbol in sorted(found, key=str)
    }

    def fresh(number: Any) -> Any:
        if not is_symbolic(number):
            return known(number)
        expr = key(number)
        return env.create_symintnode(expr.xreplace(new_symbols), hint=int(expr.xreplace(dict(numbers))))

    return [_fresh(value, fresh, mode) for value in flat], new_symbols


def _symbols(number: Any) -> set[Any]:
    return key(number).free_symbols if is_symbolic(number) else set()


def _is_plain(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return not isinstance(value, torch.SymFloat | torch.SymBool)
    special = value.is_conj() or value.is_neg() or value.is_inference() or value.storage_offset()
    return value.layout is torch.strided and not special


def _fresh(value: Any, number: Callable[[Any], Any], mode: FakeTensorMode) -> Any:
    if not isinstance(value, torch.Tensor):
        return number(value)
    with mode, torch.no_grad():
        sizes, strides = [*map(number, value.shape)], [*map(number, value.stride())]
        tensor = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    tensor.requires_grad_(value.requires_grad)
    with mode, torch.enable_grad():
        return tensor if value.is_leaf else tensor.view_as(tensor)
