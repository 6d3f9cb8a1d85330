# The programs keep the style of users, against the advice of linters.

import pytest

from tests.end_to_end.programs import Programs, vector

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs(graphs=0)
def algebra(x):
    a, b = {1, 2, 3}, frozenset([3, 4])
    return x, a | b, b | a, a & b, a - b, a ^ b, type(b | a) is frozenset, a >= {1}, a > a, {1} < a, a != {1, 2, 3}


@programs()
def in_place(x):
    a = b = {1, 2}
    a |= {3}
    a -= {1}
    a ^= {2, 9}
    a &= {3, 9, 7}
    return x + 1, a, a is b


@programs(lambda: (vector(), {1, 2, 3}))
def argument(x, s):
    s.discard(9)
    s.remove(1)
    s.update([4], {5})
    return x * len(s), 4 in s


@programs(graphs=0, breaks=1)
def removing_what_is_not_there_raises(x):
    return {1}.remove(2)


@programs(graphs=0, breaks=1)
def operator_with_a_list_raises(x):
    return {1} | [2]


@programs(graphs=0)
def order_that_cannot_show(x):
    s = {3, 1, 2}
    return x, sorted(s), min(s), max(s), len(s), list({7}), {4}.pop(), s == {1, 2, 3}, frozenset(s) == s, s.copy()


@programs()
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
