from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


@programs()
class Cases:
    @programs(graphs=0)
    def iterators_see_changes_of_the_list(x):
        xs = [1, 2, 3]
        it, back = iter(xs), reversed(xs)
        next(it)
        next(back)
        xs[1] = x
        xs.append(4)
        return list(it), list(back)

    def zip_stops_at_the_shortest(x):
        a, b = iter([1, 2, 3]), iter([x, x + 1])
        return list(zip(a, b)), list(a), list(zip()), list(zip([1], [2], strict=True))

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

    @programs(graphs=0)
    def iter_of_iter(x):
        it = enumerate([x], 5)
        return iter(it) is it, list(it), [list(z) for z in zip("ab", range(2))]

    @programs(graphs=0, breaks=1)
    def next_of_a_list_raises(x):
        return next([1])
