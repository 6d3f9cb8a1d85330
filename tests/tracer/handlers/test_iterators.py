# The programs keep the style of users, against the advice of linters.
# ruff: noqa: C417

import pytest

from tests.end_to_end.programs import Programs, vector

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs()
def exhausted_iterators_stay_exhausted(x):
    xs = [1]
    it = iter(xs)
    a = next(it), next(it, "end")
    xs.append(2)
    return x + 1, a, next(it, "end"), list(it)


@programs(graphs=0)
def iterators_see_changes_of_the_list(x):
    xs = [1, 2, 3]
    it, back = iter(xs), reversed(xs)
    next(it)
    next(back)
    xs[1] = x
    xs.append(4)
    return list(it), list(back)


@programs()
def zip_stops_at_the_shortest(x):
    a, b = iter([1, 2, 3]), iter([x, x + 1])
    return list(zip(a, b)), list(a), list(zip()), list(zip([1], [2], strict=True))


@programs(graphs=0, breaks=1)
def strict_zip_of_different_lengths_raises(x):
    return list(zip([1], [1, 2], strict=True))


@programs()
def lazy_map_and_filter(x):
    log = []

    def note(v):
        log.append(v)
        return v * 2

    m = map(note, [1, 2, 3])
    first = next(m)
    before = list(log)
    f = filter(lambda v: v > 2, m)
    return first, before, list(f), log, x + 1


@programs()
def map_over_several(x):
    return list(map(lambda a, b: a * b, [x, 2], (3, 4, 5))), dict(map(lambda p: (p, 1), "ab"))


@programs(graphs=0)
def iter_of_iter(x):
    it = enumerate([x], 5)
    return iter(it) is it, list(it), [list(z) for z in zip("ab", range(2))]


@programs()
def next_of_everything(x):
    return (
        next(iter((x, 1))),
        next(iter({"a": 1})),
        next(iter("q")),
        next(iter(range(5, 9))),
        next(zip([1], [2])),
        x + 1,
    )


@programs(graphs=0, breaks=1)
def iterating_over_a_number_raises(x):
    for _ in 3:
        pass


@programs(graphs=0, breaks=1)
def next_of_a_list_raises(x):
    return next([1])


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n, 0, -1))


@programs(lambda: (vector(), Countdown(3)))
def iter_written_by_the_user(x, c):
    return [x * n for n in c], list(c), sum(c), tuple(zip(c, c))


@programs(lambda: (vector(), iter([1, 2, 3])), graphs=None, breaks=None)
def iterator_argument(x, it):
    return [x * n for n in it]


@programs(graphs=0)
def iterator_returned(x):
    xs = [x + 1, 2]
    it = iter(xs)
    next(it)
    return list(it), sum(map(len, ["a", "bc"]))


@programs()
def reversed_of_many(x):
    return (
        list(reversed("ab")),
        list(reversed((1, x))),
        list(reversed(range(3))),
        list(reversed({"a": 1, "b": 2})),
        x + 1,
    )
