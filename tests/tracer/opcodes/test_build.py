# The programs keep the style of users, against the advice of linters.
# ruff: noqa: C416, PIE800

from tests.end_to_end.programs import Programs, two_vectors, vector

programs = Programs()
test_same_as_eager = programs.test()


@programs(graphs=None, breaks=None)
class Cases:
    def built_across_graph_breaks(x):
        a = [1, 2]
        parts = [*a, x.sum().item(), *a, x.mean().item()]
        named = {"a": 1, **{"b": 2}, "c": x.max().item()}
        return parts, named, {*a, x.min().item()}, [x[i].item() for i in range(3)]

    @programs(lambda: (vector(), iter([1, 2, 3])), graphs=None, breaks=None)
    def comprehensions_over_an_iterator(x, items):
        return [x * n for n in items], {n for n in items}, {n: x + n for n in items}

    @programs(two_vectors, graphs=1, breaks=1)
    def not_of_a_tensor(x, y):
        z = (x * y).sum() > 1000
        return x if not z else y, z
