"""Values that vary before a graph break are known to vary after the break, even in code that is reached later."""

import pytest
import torch

import minidynamo


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))
        self.rate, self.seen = 0.5, None

    def forward(self, x, limit):
        self.seen = x * self.rate
        for layer in self.layers:
            x = layer(x)
            if x.abs().mean().item() > limit:
                break
        return x * x.shape[0] + self.seen[:1] + self.rate


def chosen(x, which, scale):
    rows = x.shape[0]
    held, by_name = (x * 2, scale), {"x": x + scale, "rows": rows}

    def last(y):
        return y[rows - 1] * scale

    if which.any():
        return held[0].view(-1)[:rows] * held[1] + by_name["x"].sum(0).mean() * by_name["rows"]
    return last(x) + rows


def compiles(compiled, calls):
    """Returns the number of versions that each call compiles. Each result equals eager's."""
    counts = []
    for call in calls:
        before = minidynamo.stats(compiled).compiles
        torch.testing.assert_close(compiled(*call), compiled.py_func(*call))
        counts.append(minidynamo.stats(compiled).compiles - before)
    return counts


def test_a_branch_that_is_taken_late_is_compiled_once() -> None:
    compiled = minidynamo.compile(chosen, backend="eager")
    calls = [(torch.randn(3 + k, 4), torch.tensor(k // 4 % 2 == 1), 0.5 + k / 10) for k in range(12)]
    assert compiles(compiled, calls) == [2, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]


def test_a_way_out_of_a_loop_that_is_taken_late_is_compiled_once() -> None:
    model = Model()
    expected = Model()
    expected.load_state_dict(model.state_dict())
    compiled = minidynamo.compile(model, backend="eager")
    counts = []
    for k in range(8):
        x, limit = torch.randn(3 + k, 3) * (1e9 if k > 4 else 1), 1e6
        model.rate = expected.rate = 0.5 + k / 10
        before = minidynamo.stats(compiled).compiles
        torch.testing.assert_close(compiled(x, limit), expected(x, limit))
        counts.append(minidynamo.stats(compiled).compiles - before)
    assert counts[2:] == [0, 0, 0, 1, 0, 0]


def test_nothing_is_foreseen_of_sizes_that_have_not_varied() -> None:
    compiled = minidynamo.compile(chosen, backend="eager")
    x = torch.randn(3, 4)
    assert compiles(compiled, [(x, torch.tensor(k > 1), 0.5) for k in range(4)]) == [2, 0, 1, 0]
    assert "?" not in compiled.profile()


def halved(y, n, *more, **named):
    z = y * 0.5
    minidynamo.graph_break()
    return z + n + y.shape[0] + sum(more) + sum(named.values())


class Scaled(torch.nn.Module):
    rate = 0.5

    def forward(self, y, n):
        z = y * self.rate
        return z + n if z.sum().item() < 1e9 else z


scaled = Scaled()


def called(x, n, late):
    return halved(x + 1, n) if late.item() else x * n


def called_with_names(x, n, late):
    return halved(n=n, y=x + 1, k=n + 1) if late.item() else x * n


def called_with_unpacked(x, n, late):
    args, kwargs = (x + 1, n, n * 2), {"k": n}
    return halved(*args, **kwargs) if late.item() else x * n


def called_as_a_module(x, n, late):
    return scaled(x, n) if late.item() else x * n


def called_as_a_closure(x, n, late):
    rows = x.shape[0]

    def inner(y):
        more = lambda: y.sum() + rows  # noqa: E731
        minidynamo.graph_break()
        return more() * n

    return inner(x * 2) if late.item() else x * n


@pytest.mark.parametrize(
    "program", [called, called_with_names, called_with_unpacked, called_as_a_module, called_as_a_closure]
)
def test_a_function_that_is_called_late_at_a_break_is_compiled_once(program) -> None:
    compiled = minidynamo.compile(program, backend="eager")
    counts = compiles(compiled, [(torch.randn(3 + k, 4), 2 + k, torch.tensor(k > 2)) for k in range(7)])
    # Frames that resume with a function's result see the result for the first time; a call of a module is a function,
    # too.
    assert counts[2:3] + counts[5:] == [0, 0, 0] and counts[4] <= (2 if program is called_as_a_module else 1)
