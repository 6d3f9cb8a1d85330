import itertools

import pytest
import torch
import torch.utils.checkpoint

import minidynamo
from minidynamo.errors import MinidynamoError
from minidynamo.testing import assert_same_as_eager


def sums_behind_the_first(x):
    return x.sum(torch.arange(1, x.dim()).tolist())


def steps_of_a_schedule(x):
    times = torch.linspace(0, 1, 5)
    assert (times[1:] > times[:-1]).all(), "times go up"
    late = 0
    for begin, end in itertools.pairwise(times):
        if end > 0.3:
            late += 1
        x = x * (end - begin)
    return x, late


def window(x):
    weights = torch.hann_window(4)
    above = weights > 0.5
    return x + int(above.sum()) + float(weights.max()) + weights.view(2, 2).T[1].tolist()[0]


def parts(x):
    first, second = torch.arange(6).split(3)
    return x * len(first.tolist()) + torch.stack([first, second]).sum(1).tolist()[1]


@pytest.mark.parametrize("program", [sums_behind_the_first, steps_of_a_schedule, window, parts])
def test_values_computed_of_constants_are_known_while_tracing(program):
    f = minidynamo.compile(program, backend="eager", fullgraph=True)
    for count in (2, 3, 4):
        x = torch.randn(count, 3, 2)
        torch.testing.assert_close(f(x), program(x), rtol=0, atol=0)


def written(x):
    t = torch.zeros(3)
    t[1] = 2.0
    return x + t.tolist()[1]


def written_through_a_view(x):
    t = torch.zeros(3)
    t.view(3, 1).add_(1)
    return x + t.tolist()[1]


def written_behind_autograd(x):
    t = torch.zeros(3)
    t.data.add_(1)
    return x + t.sum().item()


def written_in_a_checkpoint(x):
    t = torch.zeros(3)

    def add(x):
        t.add_(1)
        return x + t.sum().item()

    return torch.utils.checkpoint.checkpoint(add, x, use_reentrant=False)


def written_without_a_count(x):
    found_inf = torch.zeros(1)
    torch._amp_foreach_non_finite_check_and_unscale_([x / 0], found_inf, torch.ones(1))
    return x + found_inf.tolist()[0]


def drawn(x):
    return x + torch.rand(3).tolist()[1]


def not_initialised(x):
    return x + torch.empty(3).mul(0).nan_to_num(0).tolist()[1]


def in_half_precision(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = torch.ones(2, 2) @ torch.full((2, 2), 0.3)
    return x + product[0, 0].item()


def of_an_argument(x):
    return x + torch.arange(3).add(x.shape[0]).mul(x.sum()).tolist()[1]


def counted_for_long(x):
    count = torch.zeros(2)
    while count.sum() < 500:
        count = count + 1
    return x + count.sum()


WRITTEN = [
    written,
    written_through_a_view,
    written_behind_autograd,
    written_in_a_checkpoint,
    written_without_a_count,
]


@pytest.mark.parametrize(
    "program", [*WRITTEN, drawn, not_initialised, in_half_precision, of_an_argument, counted_for_long]
)
def test_other_values_are_read_when_the_graph_has_run(program):
    f = minidynamo.compile(program, backend="eager")
    for count in (2, 3):
        x = torch.randn(count, 3)
        torch.manual_seed(0)
        expected = program(x)
        torch.manual_seed(0)
        torch.testing.assert_close(f(x), expected, rtol=0, atol=0)
    assert "graph break" in f.breaks()


def test_what_raises_while_it_is_computed_raises_in_the_call():
    f = minidynamo.compile(lambda x: x + torch.arange(3)[torch.tensor([7])].tolist()[0], backend="eager")
    with pytest.raises(IndexError, match="out of"):
        f(torch.ones(2))


class Skipping(torch.nn.Module):
    """An encoder that skips layers at random, as those of transformers do."""

    def __init__(self, layerdrop):
        super().__init__()
        self.layerdrop = layerdrop
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            if self.training:
                probability = torch.rand([])
                if probability < self.layerdrop:
                    continue
            x = layer(x).relu()
        return torch.nn.functional.dropout(x)  # draws as in eager, after the draws for the layers


def test_a_comparison_that_is_false_for_every_draw_is_known():
    model = Skipping(0.0)
    assert_same_as_eager(model, lambda: torch.ones(2, 3), fullgraph=True)


def test_a_comparison_that_depends_on_the_draw_is_not_known():
    model = Skipping(0.5)
    compiled = minidynamo.compile(lambda x: model(x), backend="eager")
    for seed in range(4):
        torch.manual_seed(seed)
        expected = model(torch.ones(2, 3))
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(torch.ones(2, 3)), expected)
    assert compiled.stats.graph_breaks > 0


def comparing(comparison):
    def program(x):
        answers = [bool(answer) for answer in comparison(torch.rand(1))]
        return x + sum(answers)

    return program


def test_numbers_that_no_draw_reaches():
    program = comparing(lambda r: (r < 0, r <= -1, r > 1, r > 1.0, r >= 2))
    assert_same_as_eager(program, lambda: torch.ones(1), fullgraph=True)


@pytest.mark.parametrize(
    "comparison",
    [lambda r: (r <= 0,), lambda r: (r < 0.1,), lambda r: (r.neg_() < 0,), lambda r: (r < float("nan"),)],
    ids=["the least draw", "a draw", "a changed draw", "nan"],
)
def test_numbers_that_a_draw_may_reach(comparison):
    with pytest.raises(MinidynamoError, match="MD201"):
        minidynamo.compile(comparing(comparison), backend="eager", fullgraph=True)(torch.ones(1))
