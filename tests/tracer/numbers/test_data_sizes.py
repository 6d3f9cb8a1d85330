"""Calls whose result has a size that tensors hold, in graphs of a known size."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import rows_of

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


class Selections:
    """Each function selects from `x` by masks that depend on `lengths` alone."""

    def in_the_middle(x, lengths):
        mask = torch.arange(6, device=x.device) < lengths[:, None]
        both = torch.stack([x.sin(), x.cos()])
        return both[:, mask] + both[1, mask, None].prod() + x[:, mask[0]].sum() + x[..., None, mask[1]].cos().sum()

    def by_positions(x, lengths):
        mask = torch.arange(6, device=x.device) < lengths[:, None]
        rows, columns = torch.where(mask)
        return x[rows, columns] + x[torch.argwhere(mask).unbind(1)]

    def assigned(x, lengths):
        x = x.clone()
        x[lengths > 2, :] += x[lengths > 2, 1:2]
        return x

    def with_numbers(x, lengths):
        return x[lengths > 2, : lengths[0]].sin() + x[lengths > 2, lengths[0] - 1, None]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", rows_of(Selections))
@pytest.mark.filterwarnings("error")
def test_selections_by_masks_do_not_break(fn, backend):
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for lengths in ([2, 3, 4], [2, 3, 4], [3, 4, 5], [6, 2, 3], [4, 3, 5]):
        x = torch.randn(3, 6, requires_grad=True)
        results = [f(x, torch.tensor(lengths)) for f in (compiled, fn)]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*[torch.autograd.grad(result.square().sum(), x) for result in results])


@pytest.mark.parametrize("backend", BACKENDS)
def test_positions_have_the_strides_of_eager(backend):
    def positions(mask):
        return mask.nonzero(), torch.nonzero(mask[0]), *torch.nonzero(mask, as_tuple=True)

    compiled = minidynamo.compile(positions, backend=backend, fullgraph=True)
    for bound in (0.2, 0.4, 0.5):
        mask = torch.linspace(0, 1, 18).view(3, 6) > bound
        for seen, expected in zip(compiled(mask), positions(mask), strict=True):
            torch.testing.assert_close(seen, expected, check_stride=expected.numel() > 0)


def test_a_mask_of_another_shape_raises_the_error_of_eager():
    for program in (lambda x, mask: x[mask], lambda x, mask: x[:, mask[0]], lambda x, mask: x[..., mask]):
        compiled = minidynamo.compile(program, backend="eager")
        for _ in range(2):
            with pytest.raises(IndexError, match="The shape of the mask"):
                compiled(torch.ones(2, 3), torch.ones(3, 2, dtype=torch.bool))


class Fills:
    """Each function fills a tensor with the number in another."""

    def of_the_same_dtype(x, number):
        return x + x.new_full((x.shape[0], 2), number)

    def like(x, number):
        return torch.full_like(x, number, dtype=torch.float64) * x

    def of_the_default_dtype(x, number):
        return torch.full((2,), number) + torch.full(size=(2,), fill_value=number.bool()) + x

    def of_integers(x, number):
        return torch.full((2,), number.long()) * 2 + torch.full((2,), number.long(), dtype=torch.float32) + x

    def without_a_dtype(x, number):
        return torch.full((2,), number.long(), dtype=None) + x.new_full((2,), number, dtype=None).long() + x.shape[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", rows_of(Fills))
@pytest.mark.filterwarnings("error")
def test_fills_with_the_number_in_a_tensor_do_not_break(fn, backend):
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for n in range(2, 6):
        x, number = torch.randn(n, 2), torch.tensor([n / 2, 1.0])[0]
        made, wanted = compiled(x, number), fn(x, number)
        assert made.dtype == wanted.dtype and torch.equal(made, wanted)
    assert compiled.stats.graphs == 2


@pytest.mark.parametrize("number", [torch.tensor(1e6), torch.tensor(300)])
def test_numbers_that_overflow_raise_eager_errors(number):
    def f(x, number):
        return x.new_full((2,), number)

    compiled = minidynamo.compile(f, backend="aot_eager")
    for dtype in (torch.float16, torch.uint8):
        x = torch.ones(2, dtype=dtype)
        try:
            wanted = f(x, number)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match="without overflow") as raised:
                compiled(x, number)
            assert str(raised.value) == str(error)
        else:
            assert torch.equal(compiled(x, number), wanted)
