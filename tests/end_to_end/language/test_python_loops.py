"""Loops and comprehensions."""

import itertools

from tests.end_to_end.programs import Programs, leaf, two_vectors

programs = Programs()
test_same_as_eager = programs.test()


@programs()
class Comprehensions:
    nested_in_a_call = lambda x: (sum([x * i for i in range(1, 4)]), max([i**2 for i in range(3)]))
    with_condition_expression = lambda x: [x + i if i % 2 else x - i for i in range(3)]

    def of_lists(x):
        made = [x + i for i in range(3)], [i for i in range(6) if i % 2 if i > 1]
        return *made, [[j * i for j in range(2)] for i in range(2)]

    def of_dicts_and_sets(x):
        return {i: x * i for i in range(3)}, {i % 2 for i in range(5)}, {k: v for k, v in [("a", 1), ("b", x)]}

    @programs(two_vectors)
    def over_two_lists(x, y):
        return [a + b for a, b in zip([x, y], [y, x])], [(i, t) for i, t in enumerate((x, y))]

    @programs(graphs=0)
    def several_for(x):
        return [(i, j) for i in range(2) for j in range(i + 1)], x

    def closing_over_a_local(x):
        n = 3
        return [x * n for _ in range(2)], dict.fromkeys("ab", n)

    @programs(graphs=0)
    def iterable_evaluated_outside(x):
        i = 5
        return [i for i in range(i)], i, x


@programs()
class Loops:
    @programs(leaf)
    def over_a_range(x):
        for i in range(3):
            x = x * (i + 1)
        return x

    def with_break_and_continue(x):
        for i in range(10):
            if i == 1:
                continue
            if i == 4:
                break
            x = x + i
        else:
            x = x * 100
        return x, i

    def with_else(x):
        for i in range(2):
            x = x + i
        else:
            x = x * 2
        return x

    def while_loop(x):
        n = 0
        while n < 3:
            x = x + n
            n += 1
        return x

    @programs(two_vectors)
    def enumerate_and_zip(x, y):
        total = 0
        for i, t in enumerate([x, y], start=1):
            total = total + t * i
        for a, b in zip([x, y], (1, 2), strict=True):
            total = total + a * b
        return total

    def over_map_filter_reversed(x):
        out = [x + v for v in map(lambda a, b: a + b, [1, 2, 3], [10, 20])]
        kept = list(filter(None, [0, 1, "", 2]))
        odd = list(filter(lambda v: v % 2, range(5)))
        return out, kept, odd, list(reversed([1, 2, 3]))

    def nested_loops(x):
        total = x
        for i in range(2):
            for j in range(i, 3):
                total = total + i * j
        return total

    def next_and_iter(x):
        it = iter([x, x + 1, 3])
        a = next(it)
        rest = list(it)
        return a, rest, next(it, None), next(iter({"k": 1}))

    @programs(graphs=0)
    def iterator_consumed_in_two_places(x):
        it = iter(range(6))
        pairs = list(zip(it, it))
        return x, pairs

    @programs(graphs=0)
    def list_that_grows_while_looped_over(x):
        xs = [1, 2]
        for n in xs:
            if n < 4:
                xs.append(n + 2)
        return x, xs

    @programs(breaks=1, graphs=0)
    def next_of_nothing_raises(x):
        return next(iter([]))

    def loop_variable_lives_on(x):
        for i, (a, b) in enumerate([(1, 2), (3, 4)]):
            x = x + a * b
        return x, i, a, b

    @programs(graphs=0)
    def enumerate_of_enumerate(x):
        return [(i, j, v) for i, (j, v) in enumerate(enumerate("ab", 5), -1)], x

    def lazy_itertools(x):
        log = []

        def note(v):
            log.append(v)
            return v

        for v in itertools.chain(map(note, [1, 2]), [3]):
            log.append(["body", v])
        for v in itertools.takewhile(lambda u: note(u) < 3, [1, 2, 3, 4]):
            log.append(["body", v])
        for v in itertools.islice(map(note, range(10)), 1, 6, 2):
            log.append(["body", v])
        return x + 1, log

    def endless_itertools(x):
        pairs = list(zip(itertools.count(1), [x, x + 1], itertools.cycle("ab"), itertools.repeat(None)))
        numbers = []
        for n in itertools.count(10, 5):
            if n > 20:
                break
            numbers.append(n)
        return pairs, numbers
