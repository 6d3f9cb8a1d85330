"""Keys of dicts and elements of sets: identities, and classes that change their equality between calls."""

from __future__ import annotations

import collections

import torch

from tests.end_to_end.histories import Histories, attempt, compare, vector

histories = Histories()
test_same_as_eager = histories.test()


class Key:
    pass


@histories
def an_object_that_becomes_the_key(compiled):
    a, b = Key(), Key()
    table = {a: 2}
    f = compiled(lambda x, key: (x * table.get(key, 5), key in table, len({a, key}), len({a: 1, key: 2})))
    for key in (b, a, Key(), a, b):
        yield f(vector(), key)


@histories
def equality_replaced(compiled):
    class Number:
        def __init__(self, number):
            self.number = number

        def __eq__(self, other):
            return self.number == other.number

        def __hash__(self):
            return hash(self.number)

    table, elements = {Number(1): 2}, {Number(1), Number(2)}

    @compiled
    def f(x, key):
        return x * table.get(key, 5), key in elements, (key, 1) in {(Number(1), 1)}

    key = Number(1)
    yield f(vector(), key)
    Number.__eq__ = lambda self, other: False
    yield f(vector(), key)
    Number.__eq__ = lambda self, other: True
    yield f(vector(), key)
    Number.__hash__ = lambda self: 7
    yield f(vector(), key)
    Number.__hash__ = None
    yield type(attempt(f, vector(), key)).__name__


@histories
class Cases:
    def a_name_among_tensors(compiled):
        a, b = torch.zeros(3), torch.zeros(3)
        f = compiled(
            lambda x, table: ("k" in table, list(map(str, table)), x * table.get("k", 5) + table[a], b in table)
        )
        for keys in ((a, "k"), (a, "k"), ("k", a), (a, "l"), (a, b), (a, "k", b), (a, "k")):
            yield f(vector(), {key: vector() + place for place, key in enumerate(keys)})

    def a_name_joins_tensors(compiled):
        table, key = collections.defaultdict(dict), vector()

        @compiled
        def f(x):
            if "k" not in table:
                table["k"] = 1.0
            table[key].setdefault("sum", torch.zeros(3)).add_(x)
            table["k"] += 1
            return table[key]["sum"] * table["k"]

        for _ in range(4):
            yield f(vector()), len(table), table["k"]

    def arguments_that_are_keys(compiled):
        keys = [torch.ones(2 + place % 2) for place in range(6)] + [Key(), Key()]
        for kind in (dict, collections.OrderedDict, collections.defaultdict):
            table = kind()

            @compiled
            def update(key, table=table):
                if key not in table:
                    table[key] = {"sum": torch.zeros(3), "step": 0}
                state = table[key]
                state["step"] += 1
                state["sum"] += state["step"]
                return state["sum"] * 2

            @compiled
            def look(key, table=table):
                found = table.get(key, 7)
                return found is None, found == 7, key in table, vector()

            @compiled
            def take(key, table=table):
                found = table.pop(key, None)
                return len(table), 0 if found is None else found["sum"] + 1, [other is key for other in table]

            for key in (*keys, *keys):
                yield update(key), len(table)
            for key in keys[::3]:
                yield take(key), take(key)
            table[keys[1]] = None
            for key in keys:
                yield look(key)

    def two_arguments_that_become_one(compiled):
        a, b = Key(), Key()

        @compiled
        def f(x, first, second):
            table = {first: 1}
            table[second] = 2
            return x * len(table), table[first]

        for pair in ((a, b), (a, a), (b, a), (b, b)):
            yield f(vector(), *pair)

    def an_element_of_a_set(compiled):
        a, b = Key(), Key()
        f = compiled(lambda x, elements, element: (x + 1, element in elements, len(elements | {element})))
        for elements, element in (({a}, b), ({a}, a), ({b}, b), ({a, b}, Key())):
            yield f(vector(), elements, element)

    def functions_of_one_code(compiled):
        def made(number):
            return lambda: number

        a, b = made(1), made(2)
        table = {a: 2}
        f = compiled(lambda x, key: (x * table.get(key, 5), key in table, len({a, key}), key is a, key == a))
        for key in (a, b, a, made(3)):
            yield f(vector(), key)

    def functions_in_c_as_keys(compiled):
        one, equal = dict.fromkeys, dict.fromkeys
        table = {torch.sin: 2, one: 3, torch.Tensor.add: 4, torch.ops.aten.add.Tensor: 5, (torch.cos, 1): 6}

        @compiled
        def f(x, key):
            return x * table.get(key, 7), key in table, len({one, key}), [k is key for k in table], key.__name__

        for key in (torch.sin, torch.cos, one, equal, torch.Tensor.add, torch.ops.aten.add.Tensor, len):
            yield f(vector(), key)
        table[equal] = table.pop(one)
        for key in (one, equal):
            yield f(vector(), key)

    def modules_as_keys(compiled):
        a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        table = {a: 2}
        f = compiled(lambda x, key: (x * table.get(key, 5), key in table, len({a, key})))
        for key in (a, b, a, b):
            yield f(vector(), key)

    def equality_that_is_none_of_the_hash(compiled):
        class Base:
            def __eq__(self, other):
                return self is other

            __hash__ = object.__hash__

        class Odd(Base):
            pass

        a, b = Odd(), Odd()
        table = {a: 2}
        f = compiled(lambda x, key: (x * table.get(key, 5), key in table, len({a, key})))
        yield f(vector(), b), f(vector(), a)
        Base.__eq__ = lambda self, other: True
        yield f(vector(), b), f(vector(), a)
        Base.__hash__ = lambda self: 7
        table = {a: 3}
        yield f(vector(), b), f(vector(), a)

    def equality_that_the_class_gets_later(compiled):
        class Late:
            pass

        a, b = Late(), Late()
        table = {a: 2}
        f = compiled(lambda x, key: (x * table.get(key, 5), key in table))
        yield f(vector(), b), f(vector(), a)
        Late.__eq__ = lambda self, other: True
        Late.__hash__ = lambda self: 7
        table = {a: 3}
        yield f(vector(), b), f(vector(), a)

    def classes_whose_metaclass_compares(compiled):
        class Meta(type):
            def __eq__(cls, other):
                return cls is other

            def __hash__(cls):
                return 3

        first, second = Meta("First", (), {}), Meta("Second", (), {})
        table = {first: 1}
        f = compiled(lambda x, key: x * table.get(key, 9))
        yield f(vector(), first), f(vector(), second)
        Meta.__eq__ = lambda cls, other: True
        yield f(vector(), first), f(vector(), second)


def test_same_as_eager_through_other_backends():
    compare(equality_replaced, "aot_eager")
    compare(an_object_that_becomes_the_key, "aot_eager")
