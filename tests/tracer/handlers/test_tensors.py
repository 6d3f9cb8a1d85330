# The programs keep the style of users, against the advice of linters.
# ruff: noqa: RUF015

import torch

import minidynamo
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


@programs(lambda: torch.tensor(3.0), graphs=0, breaks=1)
class Cases:
    @programs(lambda: torch.randn(3, 2))
    def sequence_of_rows(x):
        made = len(x), [row * i for i, row in enumerate(x)], list(x)
        return *made, tuple(x)[0], reversed(x), dict(zip("abc", x)), sum(x)

    def scalar_has_no_length(x):
        return len(x)

    def scalar_is_not_iterable(x):
        for _ in x:
            pass

    @programs(lambda: torch.randn(2, 3))
    def unpacked_results(x):
        values, indices = x.max(dim=1)
        (a, b), c = x.split([1, 2], dim=1), x.topk(1)
        return values, indices, a, b, c.values, torch.sort(x)[0], [*x.unbind(1)]


def test_a_new_tensor_of_a_size_is_not_one_that_holds_its_numbers():
    def made(x):
        return x.new(torch.Size([2])).zero_(), x.new((2,)), x.new([2]), x.new(2, 1).zero_(), x.new(torch.Size([])).shape

    compiled = minidynamo.compile(made, backend="eager", fullgraph=True)
    for actual, expected in zip(compiled(torch.ones(3)), made(torch.ones(3))):
        assert torch.equal(actual, expected) if isinstance(expected, torch.Tensor) else actual == expected
