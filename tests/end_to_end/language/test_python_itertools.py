"""itertools in captured programs: as lazy as the original, also across a graph break."""

import itertools
import operator

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


LIBRARY_ITERATORS = {
    "count": lambda: itertools.count(3),
    "cycle": lambda: itertools.cycle([1, 2]),
    "repeat": lambda: itertools.repeat(1, 3),
    "accumulate": lambda: itertools.accumulate([1, 2]),
    "product": lambda: itertools.product([1], [2]),
    "permutations": lambda: itertools.permutations([1, 2]),
    "pairwise": lambda: itertools.pairwise([1, 2, 3]),
    "starmap": lambda: itertools.starmap(max, [(1, 2)]),
    "takewhile": lambda: itertools.takewhile(bool, [1, 0]),
    "groupby": lambda: itertools.groupby("aab"),
    "zip_longest": lambda: itertools.zip_longest([1], [2, 3], fillvalue=0),
    "tee": lambda: itertools.tee([1, 2])[0],
    "iter": lambda: iter(lambda: 1, 2),
}


@programs()
class Cases:
    def sums_and_chains(x):
        made = list(itertools.accumulate([1, 2, 3])), list(itertools.accumulate([x, x], operator.add))
        made += list(itertools.accumulate([1, 2], lambda a, b: a * b, initial=5)), list(itertools.chain([1], [x], "a"))
        return *made, list(itertools.chain.from_iterable([[1], [x, 3]])), list(itertools.chain())

    def choices(x):
        return (
            [list(row) for row in itertools.combinations([1, x, 3], 2)],
            [sum(row) for row in itertools.combinations_with_replacement([1, 2], 2)],
            [sum(row) for row in itertools.permutations([1, 2, 3], 2)],
            [a * b for a, b in itertools.product([1, 2], [x, 3])],
            len(list(itertools.product([1, 2], repeat=3))),
        )

    def endless_ones(x):
        steps = itertools.count(3, 2)
        total = [x * n for n in itertools.islice(steps, 2)]
        return (
            total,
            next(steps),
            list(itertools.islice(itertools.cycle([1, 2]), 5)),
            list(itertools.repeat(x, 2)),
            list(itertools.repeat(object=1, times=2)),
            list(itertools.islice(itertools.repeat(1), 2)),
            list(itertools.islice([1, 2, 3, 4], 1, None, 2)),
            list(itertools.islice(itertools.count(0.5, 0.25), 3)),
        )

    def selections(x):
        return (
            list(itertools.takewhile(lambda n: n < 3, [1, 2, 3, 1])),
            list(itertools.dropwhile(lambda n: n < 3, [1, 2, 3, 1])),
            list(itertools.filterfalse(None, [0, 1, 2])),
            list(itertools.compress([1, x, 3], [1, 0, 1])),
            [b - a for a, b in itertools.pairwise([1, 2, 4])],
            list(itertools.starmap(torch.mul, [(x, 2), (x, x)])),
            [list(row) for row in itertools.zip_longest([1, 2], [x], fillvalue=0)],
        )

    def groups(x):
        by_rank = itertools.groupby([x, x + 1, x.sum()], key=lambda t: t.dim())
        return (
            [(key, list(group)) for key, group in itertools.groupby([1, 1, 2, 2, 2, 3])],
            {key: [t * 2 for t in group] for key, group in by_rank},
            [key for key, _ in itertools.groupby("aabbcc")],
            list(itertools.groupby([])),
        )

    def groups_used_late(x):
        pairs = itertools.groupby("aabb")
        (key, first), (other, second) = next(pairs), next(pairs)
        return x * 2, key, other, list(first), next(second), list(pairs), list(second)

    def several_branches(x):
        log = []

        def items():
            for n in range(3):
                log.append(n)
                yield x * n

        left, right = itertools.tee(items())
        a, b = next(left), next(right)
        log.append("both")
        shifted, plain = itertools.tee([1, 2, 3])
        next(shifted, None)
        return a, b, list(left), list(right), log, [b - a for a, b in zip(plain, shifted)]

    @programs(graphs=0)
    def a_list_that_grows_meanwhile(x):
        items = [1]
        chained, sliced, summed = itertools.chain(items, [5]), itertools.islice(items, 3), itertools.accumulate(items)
        pairs = itertools.pairwise(items)
        items.append(2)
        return x, list(chained), list(sliced), list(summed), [sum(pair) for pair in pairs]

    def what_is_left_over(x):
        source = iter([1, 2, 3, 4, 5, 6, 7, 8])
        first = list(itertools.islice(source, 0, 4, 3))
        rest = list(itertools.takewhile(lambda n: n < 6, source))
        return x + 1, first, rest, list(source)

    def iterators_that_are_returned(x):
        chained = itertools.chain([x], [2, 3])
        next(chained)
        sliced = itertools.islice([1, 2, 3, 4, 5], 1, 4, 2)
        next(sliced)
        return x + 1, [*chained, *sliced], type(chained) is itertools.chain, isinstance(sliced, itertools.islice)

    @programs(graphs=3, breaks=None)
    def a_break_in_a_loop_over_a_chain(x):
        for part in itertools.chain([x], [x + 1]):
            minidynamo.graph_break()
            print("part")
            x = x + part
        return x

    @programs(graphs=None, breaks=None)
    def a_break_in_a_loop_over_a_slice(x):
        for n in itertools.islice([1, 2, 3, 4, 5], 0, 4, 2):
            minidynamo.graph_break()
            print(n)
            x = x + n
        return x

    def calls_until(x):
        items = [3, 2, 1, 0, 4]
        found = [x * n for n in iter(lambda: items.pop(0), 0)]
        return found, items

    def items_are_taken_when_a_product_is_made(x):
        pool = [1, 2]
        pairs = itertools.product(pool, repeat=2)
        pool.append(3)
        return x + 1, pairs.__next__(), list(pairs)

    @programs(graphs=2, breaks=3)
    def a_break_in_a_loop_over_a_library_iterator(x):
        for i in itertools.takewhile(lambda n: n < 2, itertools.count()):
            x = x + i
            minidynamo.graph_break()
            print(x.shape)
        return x


def test_iterators_handed_over():
    def f(x):
        chained = itertools.chain([x, x + 1], (3,), [4])
        sliced = itertools.islice([1, 2, 3, 4, 5, 6], 1, 5, 2)
        return next(chained), next(sliced), chained, sliced, itertools.islice([1], 0), itertools.islice([1, 2], 9)

    x = torch.ones(2)
    for function in (f, minidynamo.compile(f, backend="eager")):
        first, second, chained, sliced, nothing, short = function(x)
        assert torch.equal(first, x) and second == 2
        assert type(chained) is itertools.chain and type(sliced) is itertools.islice
        assert torch.equal(next(chained), x + 1) and list(chained) == [3, 4] and list(sliced) == [4]
        assert list(nothing) == [] and list(short) == [1, 2]


@pytest.mark.filterwarnings("ignore:MD222")
@pytest.mark.parametrize("start", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize("name", LIBRARY_ITERATORS)
def test_an_iterator_is_of_the_class_it_was_asked_for(name, start):
    make = LIBRARY_ITERATORS[name]

    def program(x):
        iterator = make()
        first = next(iterator) if start else None
        return x + 1, first, iterator, type(iterator), isinstance(iterator, itertools.count)

    def seen(function):
        x, first, iterator, cls, is_count = function(torch.ones(1))
        first = (first[0], list(first[1])) if name == "groupby" and start else first
        items = [(key, list(group)) for key, group in iterator] if name == "groupby" else itertools.islice(iterator, 5)
        return x.tolist(), first, type(iterator), cls, is_count, list(items)

    assert seen(minidynamo.compile(program, backend="eager")) == seen(program)


@pytest.mark.parametrize("named", [False, True])
def test_a_fresh_product_does_not_see_what_its_pool_becomes(named):
    def program(x):
        pool = [1, 2]
        pairs = itertools.permutations(iterable=pool) if named else itertools.permutations(pool)
        pool.append(3)
        return x + 1, pairs

    assert list(minidynamo.compile(program, backend="eager")(torch.ones(1))[1]) == [(1, 2), (2, 1)]
