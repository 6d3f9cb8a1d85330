"""Indexing and index assignment in all forms, loops over tensors, and unpacking."""

from __future__ import annotations

import torch

from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


def block():
    return torch.arange(60.0).reshape(3, 4, 5)


def leaf_block():
    return torch.randn(3, 4, 5, requires_grad=True)


@programs(block)
class Cases:
    with_a_bool = lambda x: (x[True], x[False])

    @programs(block, leaf_block, graphs=2)
    def by_numbers_and_slices(x):
        numbers = x[0], x[-1], x[0, 1, 2], x[1:], x[::2], x[0][1], x[-2:, 1:3], x[1:2, ..., ::2]
        return numbers, x[None], x[..., 0], x[:, None, 1:3], x[..., None, :2], x[()], x[(0, 1)], x[slice(1, None), 0]

    @programs(block, leaf_block, graphs=2)
    def by_lists_and_tensors(x):
        lists = x[[0, 2]], x[[0, 1], [1, 2]], x[:, [0, 3], 1:], x[torch.tensor([0, 1])]
        made = lists, x[torch.tensor(1)], x[:, torch.tensor([0, 1])]
        return *made, x[torch.tensor([0, 1], dtype=torch.int32)], x[0, [1]]

    def bounds_made_of_tensors(x):
        i = torch.tensor(1)
        return x[i:], x[:i], x[i, 0]

    @programs(block, graphs=2, breaks=1)
    def by_a_mask(x):
        return x[x > 30] + 1

    def assigned_by_numbers_and_slices(x):
        x[0] = 1
        x[:, 1] = 2.0
        x[..., -1] = torch.ones(3, 4) * 7
        x[None, 0, 0, 0] = 9
        x[1:, ::2] += 1
        x[0, 0, 0] = True
        x[()] = x * 2
        x[slice(None), slice(1, None, 2)] = -1
        return x + 1

    def assigned_by_lists_tensors_and_masks(x):
        i = torch.tensor(1)
        x[[0, 2]] = 5
        x[0, [1, 2]] *= 2
        x[x > 30] = 0.0
        x[torch.tensor([0, 1])] = x[torch.tensor([1, 0])]
        x[i, 1:] = 0
        x[:, i] = 2
        x[i] += 4
        x[True] = x * 2
        x[x[:, 0, 0] > 3] = torch.tensor(8.0)
        return x

    def assigned_from_another_dtype(x):
        x[1] = torch.arange(5, dtype=torch.int64)
        x[..., 0] = x[..., 1].double()
        return x

    @programs(leaf_block)
    def assigned_to_a_copy_with_gradients(x):
        y = x.clone()
        y[0] = x[1] * 2
        y[:, 1] *= 3
        y[y > 1] = 0
        return y * x

    @programs(block, leaf_block, graphs=2)
    def loops(x):
        rows = [row.sum() for row in x]
        first, second, third = x
        head, *rest = x[0]
        pairs = [a + b for a, b in zip(x, reversed(x))]
        made = rows, first + second + third, head, len(rest), len(x)
        return *made, list(x[0, 0]), pairs, [i * r for i, r in enumerate(x)]

    def collected(x):
        made = sum(x), dict(zip("abc", x)), tuple(x[0]), [*x[0, :, 0]]
        return *made, x.unbind(1)[0], max(x.shape), any(x is t for t in [x])

    @programs(block, graphs=2, breaks=1)
    def membership(x):
        y = x * 2
        return y + 1 if 3 in x else y - 1

    @programs(block, graphs=0, breaks=1)
    def an_index_that_does_not_fit_raises(x):
        return x[5]

    @programs(block, graphs=0, breaks=1)
    def an_index_of_a_wrong_kind_raises(x):
        return x["a"]
