from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


@programs()
class Cases:
    @programs(graphs=0, breaks=1)
    def operator_with_a_list_raises(x):
        return {1} | [2]

    def sets_of_tensors_and_sets(x):
        y = x + 1
        seen = {x}
        seen.add(y)
        seen.add(x)
        return y, len(seen), x in seen, frozenset([1]) in {frozenset([1])}, {1} in {frozenset([1])}

    @programs(lambda: (vector(), {1, 2}), breaks=1)
    def popping_from_many_breaks(x, s):
        y = x + 1
        s.pop()
        return y, len(s)

    @programs(graphs=0, breaks=None)
    def sorting_sets_of_sets_shows_their_order(x):
        return len(sorted({frozenset([1]), frozenset([2])}))
