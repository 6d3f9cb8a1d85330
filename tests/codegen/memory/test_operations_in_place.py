"""Operations of a backward graph that runs operation by operation reuse the memory of an argument."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from benchmarks.memory import peak_bytes
from minidynamo.autograd.graph.mutation import in_place
from minidynamo.codegen.compile_graph import compile_graph
from minidynamo.codegen.ir.loops import Extern
from minidynamo.graph.marks import IN_PLACE
from tests.autograd.programs import graphs, inputs
from tests.held_gradients import held_bytes


def shared(x, w):
    return (x @ w).sin() @ w @ w


def backward_of(program, *shapes):
    gm = graphs(lambda *args: (program(*args),), inputs(*shapes)()[0]).backward
    for node in gm.graph.nodes:
        node.meta[IN_PLACE] = in_place(node)
    program = compile_graph(gm, target="aten", handing_over=True).program
    return [str(step.op) for step in program.steps if isinstance(step, Extern)]


def test_summands_of_their_own_are_added_to():
    operators = backward_of(shared, (4, 4), (4, 4))
    assert operators.count("aten.add_.Tensor") == 2 and "aten.add.Tensor" not in operators


def gathered(x, w):
    return x[torch.arange(0, 4, 2)].sin() @ w + (x @ w).gather(1, torch.arange(2).view(2, 1)).sum()


def test_parts_are_put_into_zeros_of_their_own():
    operators = backward_of(gathered, (4, 4), (4, 4))
    assert "aten.index_put_.default" in operators and "aten.index_put.default" not in operators
    assert "aten.scatter_add_.default" in operators


def test_what_is_divided_by_a_number_of_elements_is_so_where_it_is():
    def program(x, w):
        return torch.nn.functional.binary_cross_entropy_with_logits(x, w.detach())

    operators = backward_of(program, (4, 4), (4, 4))
    assert "aten.div_.Scalar" in operators and "aten.div.Scalar" not in operators


def weighted(x, w):
    weights = torch.linspace(1, 2, 4)
    return torch.nn.functional.binary_cross_entropy_with_logits(x * w, x.detach(), pos_weight=weights)


def test_pointwise_steps_are_written_over_what_was_made_for_them():
    operators = backward_of(weighted, (4, 4), (4, 4))
    assert "aten.add.Scalar" in operators  # its operand has another reader
    assert not {"aten.sub.Tensor", "aten.div.Scalar"}.intersection(operators) and "aten.sub_.Tensor" in operators


def test_what_forward_keeps_and_what_comes_in_is_not_written_over():
    operators = backward_of(lambda x, w: x * w + w, (4, 4), (4, 4))
    assert operators.count("aten.mul.Tensor") == 2 and "aten.mul_.Tensor" not in operators


def written_in_part(x, w):
    y = x * w
    y[1:].mul_(w[1:])
    return y.sin()


def test_what_is_put_into_a_part_is_written_there():
    operators = backward_of(written_in_part, (4, 4), (4, 4))
    assert any("write_part" in operator for operator in operators) and "aten.slice_scatter.default" not in operators


@pytest.mark.parametrize(
    "program",
    [
        weighted,
        written_in_part,
        lambda x, w: torch.nn.functional.binary_cross_entropy_with_logits(x @ w, x.detach()),
        lambda x, w: x.exp().mean() * w,  # the dividend is an expanded number
        lambda x, w: (x + w).sin() * 2 + x,  # a gradient is a summand as well
        gathered,
        lambda x, w: x.exp() + x.t() @ w,  # what forward kept
        lambda x, w: (x * 1).view(2, 8).sum() + (x * w).sum(),
        lambda x, w: x.expand(3, 4, 4).sum(0) * w + x,
    ],
)
def test_gradients_are_those_of_eager(program):
    leaves = inputs((4, 4), (4, 4))()[0]
    call = minidynamo.compile(program, backend="aot_eager")
    for _ in range(2):
        outcomes = [
            torch.autograd.grad(function(*leaves).square().sum(), leaves, retain_graph=True)
            for function in (call, program)
        ]
        for got, wanted in zip(*outcomes, strict=True):
            torch.testing.assert_close(got, wanted)


def test_parts_are_made_of_the_graph_without_writes():
    """Ignores writes: a write would hide the sum, and with the sum the gradient of an unused result."""

    def program(x):
        return x.sin().sum(), x.sqrt()

    x = torch.zeros(3, requires_grad=True)
    call = minidynamo.compile(program, backend="aot_eager")
    first, second = call(x)
    torch.autograd.grad(first + second.sum(), x)
    assert torch.equal(torch.autograd.grad(call(x)[0], x)[0], torch.ones(3))


def test_a_retained_graph_is_left_as_it_was():
    x, w = inputs((4, 4), (4, 4))()[0]
    loss = minidynamo.compile(shared, backend="aot_eager")(x, w).sum()
    once = torch.autograd.grad(loss, (x, w), retain_graph=True)
    assert all(map(torch.equal, once, torch.autograd.grad(loss, (x, w))))


def sorts(x, w):
    return (x @ w).sort(1).values[:, :8].sum() + (x @ w).topk(3, 1).values.sum()


@pytest.mark.parametrize("program", [shared, sorts])
def test_a_weight_that_is_used_often_takes_no_more_memory_than_in_eager(program):
    leaves = inputs((16, 128), (128, 128))()[0]

    def peak(call):
        def step():
            call(*leaves).square().mean().backward()
            for leaf in leaves:
                leaf.grad = None

        step()
        return peak_bytes(step)

    held = held_bytes(program(*leaves))
    assert peak(minidynamo.compile(program, backend="aot_eager")) <= peak(program) + held


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss"])
def test_a_loss_in_the_memory_of_its_elements_is_freed(loss):
    """Torch reduces the elements where they are: the share of the loss would keep the memory of all."""

    def program(x, target):
        return getattr(torch.nn.functional, loss)(x, target) / 2

    x, target = torch.rand(1000), torch.ones(1000)
    call = minidynamo.compile(program, backend="aot_eager")
    expected = program(x, target)
    kept = []
    assert torch.equal(call(x, target), expected)
    peak_bytes(lambda: kept.append(call(x, target)))
    assert kept[0].untyped_storage().nbytes() == 4
