from collections import deque

import torch

import minidynamo
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


@programs()
class Cases:
    @programs(graphs=0)
    def slices_of_all_kinds(x):
        xs = [0, 1, 2, 3, 4, 5, x]
        a = xs[::-2], xs[-3:], xs[10:], xs[:-10], xs[2:2], xs[5:1:-1]
        xs[1:2] = []
        xs[::2] = ["a", "b", "c"]
        xs[len(xs) :] = [7]
        del xs[::3]
        return a, xs

    def slice_assigned_from_any_iterable(x):
        xs = [1, 2, 3]
        xs[1:] = range(3)
        xs[:1] = "ab"
        xs[0:0] = (x, x + 1)
        return xs

    @programs(graphs=0, breaks=1)
    def sorting_what_has_no_order_raises(x):
        return sorted([1, "a"])

    def comparisons(x):
        inner = [x]
        made = x + 1, inner == inner, [1, [2]] == [1, [2]], [1] == (1,)
        return *made, (1, 2) > (1,), [] < [0], [1.0] == [1], [1] != [1]

    def sort_is_stable_and_reversed(x):
        rows = [("b", 1), ("a", 1), ("c", 0)]
        rows.sort(key=lambda row: row[1], reverse=True)
        return rows, x + 1

    @programs(graphs=0)
    def negative_and_boolean_indices(x):
        xs = [1, x, 3]
        return xs[-1], xs[True], xs[-3], xs.pop(-2)

    @programs(graphs=0)
    def multiplication(x):
        xs = [x]
        xs *= 3
        return xs, [x] * 0, [1] * -1, 2 * (x,), 3 * [1, 2]

    def deques(x):
        q = deque("abc")
        q.appendleft(x)
        q.insert(1, 5)
        q[0] = 1
        del q[1]
        q.extendleft([7, 8])
        q.reverse()
        made = x + 1, q, q.count("a")
        return *made, q.index("b"), list(reversed(q)), deque([1]) == deque([1]), deque([1]) + deque([2])

    def what_a_sort_key_sees_of_the_list(x):
        items, seen = [3, 1, 2], []

        def key(item):
            seen.append(len(items))
            return item

        items.sort(key=key)
        failing = [2, 1]
        try:
            failing.sort(key=lambda item: [][item])
        except IndexError:
            seen.append(failing)
        return x + 1, items, seen

    @programs(breaks=None, graphs=None)
    def a_list_that_changes_while_it_is_sorted(x):
        items = [3, 1, 2]
        try:
            items.sort(key=lambda item: items.append(item) or item)
        except ValueError as error:
            return str(error), items, x + 1


def test_what_is_said_of_places_that_do_not_fit():
    def program(x):
        said = []
        for items, key, given in (([1, 2, 3], slice(None, None, 2), [1]), ([1], 4, 0), (deque([1]), 3, 0)):
            try:
                items[key] = given
            except (IndexError, ValueError) as error:
                said.append((type(error), str(error), items))
        return x + 1, said

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2))[1] == program(torch.ones(2))[1]
