from tests.end_to_end.programs import Programs, two_vectors

programs = Programs()
test_same_as_eager = programs.test()


@programs()
class Cases:
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
