import collections

import torch

from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


class Place:
    def __init__(self, number):
        self.number = number

    def __index__(self):
        return self.number


class Table:
    def __init__(self):
        self.log = []

    def __getitem__(self, key):
        return key

    def __setitem__(self, key, value):
        self.log.append((key, value))

    def __delitem__(self, key):
        self.log.append(key)


@programs()
class Cases:
    def keys_reach_the_users_methods_as_they_are(x):
        table, place = Table(), Place(1)
        table[1:2] = 3
        del table[place, 0]
        return x + 1, table[place] is place, table[..., None], table.log[0], len(table.log)

    def generic_aliases(x):
        return x + 1, list[int] == list[int], dict[str, list[int]].__args__


def test_a_class_with_parameters_is_called_as_the_class():
    def f(x):
        found = collections.deque[float]([1.0, 2.0], maxlen=1)
        table = dict[str, int](a=3)
        return x * found[0] + table["a"] + len(list[int]()), found, type(table)

    assert_same_as_eager(f, lambda: torch.ones(2), graphs=1, breaks=0)
