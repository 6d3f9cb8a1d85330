"""Operations on lists of tensors, split into one per tensor, give torch's results."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.autograd.trace.foreach import foreach_table

TABLE = foreach_table()


def tensors():
    return [torch.rand(3) * 0.8 + 0.1, torch.rand(2, 2) * 0.8 + 0.1]


MAKE = {
    "tensors": tensors,
    "scalars": lambda: [0.5, 0.25],
    "scalar": lambda: 0.75,
    "tensor": lambda: torch.tensor(1.5),
}


def arguments(op):
    """Returns a value for each positional argument, by its type."""
    positional = [argument for argument in op._schema.arguments if not argument.kwarg_only]
    return [MAKE[_kind(str(argument.type))]() for argument in positional if _kind(str(argument.type))]


def _kind(name):
    names = {"List[Tensor]": "tensors", "List[number]": "scalars", "number": "scalar", "Tensor": "tensor"}
    return names.get(name, "")


@pytest.mark.parametrize("op", sorted(TABLE, key=str), ids=str)
def test_each_operator(op):
    torch.manual_seed(0)
    expected = arguments(op)
    torch.manual_seed(0)
    actual = arguments(op)
    made = TABLE[op](*actual)
    if made is NotImplemented:
        assert op._overloadname == "Tensor" and "addc" in str(op)
        return
    given = op(*expected)
    torch.testing.assert_close(made, None if given == () else given, rtol=0, atol=0)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_scaled_sums():
    for op in (torch.ops.aten._foreach_add.List, torch.ops.aten._foreach_add_.List):
        one, other = tensors(), tensors()
        expected = [a + 3 * b for a, b in zip(one, other)]
        made = TABLE[op](one, other, alpha=3)
        torch.testing.assert_close(one if made is None else made, expected)


@pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("makes", [torch.exp, torch.sin], ids=["which reads its result", "which does not"])
def test_writes_to_what_backward_reads_are_refused(backend, makes):
    def program(x):
        values = [makes(x), x * 2]
        torch._foreach_pow_(values, 2.0)
        torch._foreach_exp_(values)
        return values[0] + values[1]

    def gradient(function):
        x = torch.linspace(0.1, 0.5, 3).requires_grad_()
        return torch.autograd.grad(function(x).sum(), x)[0]

    compiled = minidynamo.compile(program, backend=backend)
    if makes is torch.sin:
        torch.testing.assert_close(gradient(compiled), gradient(program))
        return
    for function in (program, compiled):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(function)
