"""Objects with `__index__` as subscripts, as parts of slices, and as bounds of ranges."""

from __future__ import annotations

import torch

from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


class Place:
    def __init__(self, place):
        self.place = place

    def __index__(self):
        return self.place


class Noted(Place):
    def __init__(self, place, notes):
        super().__init__(place)
        self.notes = notes

    def __index__(self):
        self.notes.append(self.place)
        return self.place


def matrix():
    return torch.arange(12.0).reshape(3, 4)


def places(*numbers):
    return lambda: (matrix(), *map(Place, numbers))


class Odd:
    def __index__(self):
        return "a"


@programs(places(1))
class Cases:
    @programs(places(1, 2), places(2, 0), graphs=2, recompiles=1, dynamic=False)
    def of_tensors(x, i, j):
        y = x.clone()
        y[i] = 0
        y[i, j] = 7
        return x[i], x[i, j], x[i:], x[:, :j], y

    def of_containers(x, i):
        items, text = [1, 2, 3], "abc"
        items[i] = x
        tail = items[i:]
        del items[i]
        return x + (4, 5, 6)[i] + range(3, 9)[i], items, tail, text[i], text[:i], b"abc"[i]

    @programs(places(3, 1))
    def of_ranges(x, stop, step):
        for i in range(stop):
            x = x + i
        return x, list(range(step, 9, stop))

    @programs(lambda: (matrix(), []))
    def asked_in_pythons_order(x, notes):
        y = x[Noted(0, notes) : Noted(2, notes) : Noted(1, notes)]
        return y + [1, 2, 3][Noted(0, notes) : Noted(1, notes)][0], notes

    def keys_of_dicts_are_themselves(x, i):
        table = {i: 2, 1: 3}
        return x * table[i], table[1]

    @programs(breaks=None, graphs=None)
    def no_number(x):
        try:
            return [1, 2][Odd()] + x
        except TypeError as error:
            return x, str(error)
