"""Torch functions left to eager: the graph ends with a code, and all effects equal eager's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import minidynamo
from minidynamo.core.events import on_event
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import leaf, vector


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def reentrant_checkpoint(x):
    return checkpoint(lambda a: (a.sin().exp(), torch.is_grad_enabled()), x, use_reentrant=True)


def backward_inside(x):
    (x * x).sum().backward()
    return x.grad * 2


def a_generator_argument(x, generator):
    return x + torch.randn(4, generator=generator)


def a_generator_made_inside(x):
    return x + torch.randn(4, generator=torch.Generator().manual_seed(3))


def sparse_argument(x):
    return (x * 2).to_dense() + 1


def named_dimensions(x):
    return x.refine_names("row").exp().sum("row") + 1


def quantized(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() + 1


def nested(x):
    return torch.nested.nested_tensor([x, x * 2]).to_padded_tensor(0.0) + 1


def a_subclass(x):
    return x * 2 + 1


CASES = [
    (reentrant_checkpoint, leaf, "MD207"),
    (backward_inside, leaf, "MD212"),
    (a_generator_argument, lambda: (torch.ones(4), torch.Generator().manual_seed(1)), "MD214"),
    (a_generator_made_inside, vector, "MD211"),
    (sparse_argument, lambda: torch.eye(4).to_sparse(), "MD206"),
    (quantized, vector, "MD207"),
    (nested, vector, "MD207"),
    (a_subclass, lambda: torch.randn(4).as_subclass(Logged), "MD206"),
]
if hasattr(torch.Tensor, "names"):
    CASES.append((named_dimensions, vector, "MD216"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("program", "inputs", "code"), CASES, ids=[case[0].__name__ for case in CASES])
def test_left_to_eager(program, inputs, code):
    codes = []
    stop = on_event(lambda e: codes.append(e.data["diagnostic"].code) if e.kind == "graph_break" else None)
    try:
        assert_same_as_eager(program, inputs, calls=2)
    finally:
        stop()
    assert codes and codes[0] == code


def padded(data, counts):
    return torch._VF._pad_packed_sequence(data * 2, counts, False, 0.0, -1)[0] + 1


def test_an_operation_that_takes_no_varying_sizes_is_no_error_of_the_program():
    compiled = minidynamo.compile(padded, backend="eager", dynamic=True)
    for counts in ([3, 2], [3, 2, 2]):
        given = torch.randn(sum(counts), 4), torch.tensor(counts)
        assert torch.equal(compiled(*given), padded(*given))
    assert "_pad_packed_sequence() does not support symbolic sizes" in str(compiled.breaks())


@pytest.mark.filterwarnings("ignore")
def test_lazy_modules_are_captured_once_they_have_their_parameters():
    counter = minidynamo.testing.CompileCounter()
    torch.manual_seed(0)
    module = minidynamo.compile(nn.Sequential(nn.LazyLinear(3), nn.ReLU()), backend=counter)
    x = torch.randn(2, 4)
    module(x)
    counter.clear()
    expected = module[1](nn.functional.linear(x, module[0].weight, module[0].bias))
    for _ in range(3):
        torch.testing.assert_close(module(x), expected)
    assert counter.frame_count <= 1
