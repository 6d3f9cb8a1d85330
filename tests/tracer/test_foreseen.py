"""What varies in front of a graph break is known to vary behind it, also where the program comes to only later."""

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
            if x.mean().item() > limit:
                break
        return x * x.shape[0] + self.seen[:1] + self.rate


def chosen(x, which, scale):
    rows = x.shape[0]
    held, by_name = (x * 2, scale), {"x": x + scale, "rows": rows}

    def last(y):
        return y[rows - 1] * scale

    if which.item():
        return held[0].view(-1)[:rows] * held[1] + by_name["x"].sum(0).mean() * by_name["rows"]
    return last(x) + rows


def compiles(compiled, calls):
    """How many versions each call makes. Each gives what the function as written does."""
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
        x, limit = torch.randn(3 + k, 3), -1e9 if k > 4 else 1e9
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
