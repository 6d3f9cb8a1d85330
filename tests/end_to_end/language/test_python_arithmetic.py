import math
import operator

import torch

from tests.end_to_end.programs import Programs, leaf, two_vectors

programs = Programs()
test_same_as_eager = programs.test()


@programs()
class Cases:
    sums = lambda x: (sum([x, x * 2]), sum([x], x), sum(range(5)), sum([], 3.0), sum([[1], [2]], []))
    all_and_any = lambda x: (x + all([1, 2]), all([]), any([0, "", None]), any([0, 3]), all([1, 0]))

    @programs(two_vectors)
    def operators_of_tensors(x, y):
        return x + y, x - y, x * y, x / y, x**2, -x, +x, abs(x), x @ y, x // y, x % y

    @programs(two_vectors)
    def comparisons(x, y):
        return x < y, x <= y, x > y, x >= y, x == y, x != y, x < 0, x > 0

    @programs(leaf)
    def in_place_on_an_intermediate(x):
        y = x * 2
        y += 1
        y *= x
        y -= 3
        y /= 2
        return y

    def in_place_on_an_input(x):
        x += 1
        x.mul_(2)
        return x

    @programs(graphs=0)
    def numbers_alone(x):
        made = 7 // 2, -7 // 2, -7 % 3, 2**10, 2**-1, 1e300 * 10
        return *made, 5 / 2, divmod(-7, 2), round(2.5), round(2.567, 2), 3 & 5 | 8

    @programs(graphs=0)
    def number_conversions(x):
        return int("12"), int(3.9), int("ff", 16), float("1.5"), complex(1, 2), bool([]), bool(3), str(12), abs(-2)

    @programs(graphs=0)
    def math_functions(x):
        return math.sqrt(2), math.floor(2.7), math.ceil(2.1), math.prod([1, 2, 3]), math.gcd(12, 18), math.pi, math.inf

    @programs(lambda: (torch.randn(3), 3), lambda: (torch.randn(3), 4), graphs=2, recompiles=1)
    def python_numbers_are_guarded(x, n):
        return x * math.sqrt(n) + n // 2

    def chained_comparison_of_numbers(x):
        n = x.shape[0]
        return x + 1 if 0 < n < 10 else x - 1

    def boolean_operators(x):
        n = x.ndim
        a = n and x + 1
        b = not n or x - 1
        return a, (n == 1 and b), (n == 2 or 5), n is None, n is not None

    def membership(x):
        return x + (2 in [1, 2]), 3 not in (1, 2), "a" in "cat", 1 in {1: 2}, 5 in {5, 6}, 7 in range(0, 10, 2)

    @programs(two_vectors)
    def operator_module(x, y):
        return operator.add(x, y), operator.mul(x, 2), operator.neg(x), operator.getitem([x, y], 1), operator.lt(1, 2)

    @programs(two_vectors)
    def matrix_products(x, y):
        m = x[:, None] @ y[None, :]
        m @= m
        return m

    @programs(graphs=0)
    def float_edge_cases(x):
        nan = float("nan")
        return nan == nan, nan != nan, nan in [nan], float("inf") - 1, -0.0, 0.1 + 0.2, sum([0.1] * 10)

    def minimum_and_maximum(x):
        return x * min(3, 1, 2), x * max([1, 5, 2]), min("pear", "fig", key=len), max([], default=4)

    @programs(lambda: (torch.randn(2, 3), 0.5), lambda: (torch.randn(2, 3), -0.5), graphs=2, recompiles=1)
    def branch_on_a_float(x, threshold):
        if threshold > 0:
            return x * threshold
        return x - threshold

    @programs(breaks=0, graphs=0)
    def unary_plus_and_not(x):
        return +x, not [], not 0.0, ~5

    @programs(lambda: torch.arange(6.0).reshape(2, 3))
    def shapes_in_arithmetic(x):
        rows, columns = x.shape
        return x.sum() / (rows * columns), x.reshape(columns, rows), x.size(0) + x.size(-1), x.numel() // 2

    @programs(breaks=1, graphs=0)
    def division_by_zero_raises(x):
        return x + 1 // 0
