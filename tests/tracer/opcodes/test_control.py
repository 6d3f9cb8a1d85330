import pytest

from tests.end_to_end.programs import Programs, two_vectors, vector

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs(lambda: (vector(), None), lambda: (vector(), 1), graphs=1)
def none_or_not(x, y):
    if y is None:
        return x
    z = 2 if y is not None else 3
    return x * z


@programs(lambda: (vector(), 0, ""), lambda: (vector(), 1, "a"), graphs=2)
def and_or_not(x, a, b):
    return x + 1, a and b, a or b, not a, a and x is None, b or (a if a else 7)


@programs()
def while_with_break_continue_else(x):
    i = 0
    while True:
        i += 1
        if i == 2:
            continue
        if i > 4:
            break
        x = x + i
    else:
        x = x * 100
    for j in (1, 2):
        x = x - j
    else:
        x = x * 2
    return x


@programs()
def nested_loops_that_end_early(x):
    for i in range(3):
        for j in range(3):
            if j == i:
                break
            x = x + i * j
        while i < 2:
            i += 1
            x = x * 1.5
    return x


@programs()
def loop_over_nothing(x):
    for _ in []:
        x = x * 0
    return x + 1


@programs(two_vectors, graphs=2, breaks=1)
def branch_on_a_tensor(x, y):
    z = x * y
    if z.sum() > -1000:
        return z + 1
    return z - 1


@programs(two_vectors, graphs=1, breaks=1)
def not_of_a_tensor(x, y):
    z = (x * y).sum() > 1000
    return x if not z else y, z


@programs(lambda: (vector(), iter([1, 2, 3])), graphs=None, breaks=None)
def iterator_from_outside(x, items):
    for item in items:
        x = x + item
    return x


@programs(graphs=0)
def constant_result(x):
    x + 1
    return 5
