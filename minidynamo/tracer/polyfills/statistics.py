"""Owns the polyfills of torch's statistics that read values although the shapes of results depend on sizes alone.

The polyfills run the same operations as torch, in its order, so that results and gradients are equal to the last bit.
Calls that torch refuses, or warns about, are not here but left to torch."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# No library function inside its own polyfill.

from __future__ import annotations

import itertools
import warnings

import torch

from minidynamo.tracer.polyfills.refusal import cannot_trace
from minidynamo.tracer.records.registry import polyfill

_MANY = 10_000  # positions that a graph holds as a constant


@polyfill(torch.Tensor.cov)
@polyfill(torch.cov)
def covariance(input, *, correction=1, fweights=None, aweights=None):
    if input.dim() > 2 or input.dtype == torch.bool:
        cannot_trace("the covariance of this tensor", "torch refuses it")
    rows = input if input.dim() == 2 else input.view(1, -1)
    count = rows.shape[1]
    weights = _weights(count, fweights, aweights)
    if weights is None:
        if count - correction <= 0:
            cannot_trace("a covariance of so few values", "torch warns about it")
        total = torch.scalar_tensor(count, dtype=torch.int64, device=input.device)
    else:
        total = weights.sum()
        if not total.ne(0):
            raise RuntimeError("the weights sum to zero")
    mean = (rows if weights is None else rows * weights).sum(1) / total
    if aweights is not None and correction != 0:
        divisor = total - correction * (weights * aweights).sum() / total
    else:
        divisor = total - correction
    if weights is not None:
        try:
            if divisor.le(0):
                raise ArithmeticError
        except ArithmeticError:  # a graph stops there, and torch itself runs
            warnings.warn("cov(): the weights leave no degrees of freedom", stacklevel=2)
            divisor = torch.zeros_like(divisor)
    centered = rows - mean.unsqueeze(1)
    weighted = centered if weights is None else centered * weights
    return torch.true_divide(torch.mm(centered, weighted.t().conj()), divisor).squeeze()


def _weights(count, fweights, aweights):
    """Returns the factors of the observations.

    If torch refuses weights for their values, the polyfill raises too, and the graph checks the condition
    (`tracer/frames/runtime_asserts.py`)."""
    weights = None
    for given, is_right in ((fweights, _is_of_ints), (aweights, _is_of_floats)):
        if given is None:
            continue
        if given.dim() > 1 or given.numel() != count or not is_right(given):
            cannot_trace("a covariance with these weights", "torch refuses them")
        if count and not given.min().ge(0):
            raise RuntimeError("weights cannot be negative")
        weights = given if weights is None else weights * given
    return weights


def _is_of_ints(tensor):
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _is_of_floats(tensor):
    return tensor.is_floating_point()


@polyfill(torch.Tensor.corrcoef)
@polyfill(torch.corrcoef)
def correlation(input):
    result = covariance(input)
    if result.dim() == 0:
        return result / result
    diagonal = result.diag()
    deviations = torch.sqrt(torch.real(diagonal) if diagonal.is_complex() else diagonal)
    result = result / deviations.view(-1, 1) / deviations.view(1, -1)
    if result.is_complex():
        return torch.complex(torch.real(result).clip(-1, 1), torch.imag(result).clip(-1, 1))
    return result.clip(-1, 1)


@polyfill(torch.combinations)
def combinations(input, r=2, with_replacement=False):
    if input.dim() != 1 or r < 0 or len(input) ** r > _MANY:
        cannot_trace("the combinations of this tensor", "they are refused, or too many to be a constant of the graph")
    if r == 0:
        return input.new_empty(0)
    length = len(input)
    chosen = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    positions = []
    for places in chosen(range(length), r):
        position = 0
        for place in places:
            position = position * length + place
        positions.append(position)
    index = torch.tensor(positions, dtype=torch.int64, device=input.device)
    grids = torch.meshgrid([input] * r, indexing="ij")
    return torch.stack([grid.reshape(-1)[index] for grid in grids], 1)
