# The programs keep the style of users, against the advice of linters.
# ruff: noqa: UP031

import pytest

from tests.end_to_end.programs import Programs, two_vectors, vector

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs(two_vectors)
def arithmetic_of_tensors(x, y):
    return x + y, x - y, x * y, x / y, x // y, x % y, x**2, 2**x, -x, +x, x @ y


@programs(lambda: (vector() > 0, vector() > 0))
def bits_of_tensors(x, y):
    return x & y, x | y, x ^ y, ~x


@programs(two_vectors)
def in_place_on_new_tensors(x, y):
    z = x.clone()
    z += y
    z -= 1
    z *= 2
    z /= 3
    z **= 2
    return z


@programs(two_vectors)
def in_place_on_an_argument(x, y):
    x += y
    return x


@programs(lambda: (vector(), 7, 2))
def arithmetic_of_numbers(x, a, b):
    return x * (a // b + a % b - a / b) + (a << b) + (a >> b) + (a & b | a ^ b) + ~a + a**b


@programs(two_vectors)
def comparisons(x, y):
    return x < y, x <= y, x == y, x != y, x > y, x >= y, 1 < 2 < 3, "a" in "abc", 3 not in [1, 2], x is y, x is not y


@programs(lambda: vector().view(2, 2))
def subscripts(x):
    y = x.clone()
    y[0] = 1
    y[:, 1] += 2
    y[..., 0:1] = y[..., 1:2]
    return y[0], y[0, 1], y[:, None], y[[1, 0]], x[0:1][0]


@programs(graphs=0)
def slices_of_lists(x):
    items = [0, 1, 2, 3, x]
    items[1:2] = ["a", "b"]
    del items[0]
    stop = 3
    return items[:stop], items[-1], items[stop - 1 : stop], items[::-2]


@programs(lambda: vector().view(2, 2))
def slice_with_a_computed_part(x):
    n = x.shape[0] - 1
    return x[n:, : n + 1]


@programs()
def formatting_a_format_operator(x):
    return "%d-%s" % (3, "a"), x + 1


@programs(graphs=0, breaks=1)
def wrong_operands_raise(x):
    return 1 + "a"


@programs(graphs=1, breaks=1)
def shapes_that_do_not_fit_raise(x):
    return x + x[:3]
