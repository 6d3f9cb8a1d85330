"""Subclasses of list and tuple: their overrides are traced, their items are accessed without the overrides."""

from typing import ClassVar

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


class Plain(list):
    pass


class Logged(list):
    """Records its method calls."""

    def __init__(self, tag="t", n=0):
        super().__init__()
        self.tag = tag
        self.n = n
        self.log = []

    def __getitem__(self, index):
        self.log.append(index)
        return list.__getitem__(self, index) * 10

    def append(self, value):
        self.n += 1
        super().append(value)


class Hostile(list):
    """A class whose methods only the program may call, and the program does not."""

    def refuse(self, *args):
        raise RuntimeError("not for the machinery")

    __getitem__ = __setitem__ = __iter__ = __len__ = __contains__ = extend = clear = refuse


def filled(cls, *items, **options):
    made = cls(**options)
    list.extend(made, items)
    return made


def ones(by=1):
    return torch.ones(2) * by


# The acceptance checks


def test_LS_1_an_override_runs_where_the_program_asks_and_nowhere_else():
    f = lambda items: items[0] + items[1]
    compiled = assert_same_as_eager(f, lambda: (filled(Logged, ones(), ones(2)),), graphs=1, breaks=0, calls=2)
    items = filled(Logged, ones(), ones(2))
    assert torch.equal(compiled(items), ones(30)) and items.log == [0, 1]


def test_LS_2_contents_are_written_back_through_the_base_class():
    def f(x, items):
        items.append(x + 1)
        items.tag = 2

    compiled = assert_same_as_eager(f, lambda: (ones(), filled(Hostile, ones())), graphs=1, breaks=0, calls=2)
    items = filled(Hostile, ones())
    compiled(ones(), items)
    assert list.__len__(items) == 2 and torch.equal(list.__getitem__(items, 1), ones(2)) and items.tag == 2


def test_LS_3_an_instance_made_while_tracing():
    def f(x):
        items = Logged("a", 3)
        items.append(x)
        items.append(x + 1)
        items.tag = "z"
        return items

    compiled = assert_same_as_eager(f, vector, graphs=1, breaks=0, calls=2)
    made = compiled(ones())
    assert type(made) is Logged and vars(made) == {"tag": "z", "n": 5, "log": []}


MUTATIONS = {
    "reverse": lambda items: items.reverse(),
    "pop": lambda items: items.pop(),
    "pop_at": lambda items: items.pop(0),
    "insert": lambda items: items.insert(1, 9),
    "slice": lambda items: items.__setitem__(slice(0, 2), [7, 8, 9]),
    "extend": lambda items: items.extend([4, 5]),
    "sort": lambda items: items.sort(),
    "sort_by": lambda items: items.sort(key=lambda item: -item, reverse=True),
    "clear": lambda items: items.clear(),
    "remove": lambda items: items.remove(1),
    "delete": lambda items: items.__delitem__(slice(0, 2)),
}


@pytest.mark.parametrize("change", MUTATIONS.values(), ids=MUTATIONS)
def test_LS_4_every_way_to_change_an_argument(change):
    def f(x, items):
        result = change(items)
        items += [x + 1]
        items *= 2
        return result, items

    assert_same_as_eager(f, lambda: (ones(), filled(Plain, 3, 1, 2)), graphs=1, breaks=0, calls=2)


def test_LS_5_length_and_class_are_guarded():
    def f(x, items):
        for item in items:
            x = x + item
        return x

    assert_same_as_eager(
        f,
        lambda: (vector(), filled(Plain, vector(), vector())),
        lambda: (vector(), filled(Plain, vector(), vector(), vector())),
        lambda: (vector(), [vector(), vector()]),
        lambda: (vector(), filled(Plain, vector(), vector())),
        graphs=3,
        recompiles=2,
    )


class ByHand(list):
    def put(self, index, value):
        list.__setitem__(self, index, value)

    def add(self, value):
        list.append(self, value)

    def all(self):
        return [item for item in list.__iter__(self)]

    def count_all(self):
        return list.__len__(self)


def test_LS_6_methods_of_list_called_on_the_class():
    def f(x, items):
        items.put(0, x * 2)
        items.add(x + 1)
        list.extend(items, [1])
        list.insert(items, 0, 2)
        list.__delitem__(items, 0)
        list.__iadd__(items, [3])
        return items.all(), items.count_all(), list.pop(items), list.copy(items)

    assert_same_as_eager(f, lambda: (vector(), filled(ByHand, 1, 2)), graphs=1, breaks=0, calls=2, fullgraph=True)


class Tripled(tuple):
    def __getitem__(self, index):
        return tuple.__getitem__(self, index) * 3


def test_LS_7_an_override_of_a_tuple_is_applied_once():
    f = lambda items: (items[0], tuple.__getitem__(items, 0), items[1], [*items], len(items))
    compiled = assert_same_as_eager(f, lambda: (Tripled((ones(), 2)),), graphs=1, breaks=0, calls=2)
    found = compiled(Tripled((ones(), 2)))
    assert torch.equal(found[0], ones(3)) and torch.equal(found[1], ones()) and found[2] == 6


def test_LS_8_errors_are_those_of_python():
    def f(x, items):
        items.append(x)
        return items.pop(7)

    for fullgraph in (False, True):
        compiled = minidynamo.compile(f, backend="eager", fullgraph=fullgraph)
        items = filled(Plain, 1)
        with pytest.raises(IndexError, match="pop index out of range"):
            compiled(ones(), items)
        assert len(items) == 2

    def g(x, items):
        try:
            items.pop(7)
        except IndexError:
            items.append(x)
        return items

    assert_same_as_eager(g, lambda: (ones(), filled(Plain, 1)), breaks=0, calls=2)


class Overriding(list):
    def __len__(self):
        return 42

    def __bool__(self):
        return False

    def __iter__(self):
        return iter([7, 8])

    def __contains__(self, value):
        return value == 99

    def __eq__(self, other):
        return "eq"

    def __add__(self, other):
        return "add"

    def __iadd__(self, other):
        self.added = other
        return self

    def __hash__(self):
        return 5


class WithSlots(list):
    __slots__ = ("a",)


class WithNew(list):
    def __new__(cls, *args):
        made = super().__new__(cls)
        made.before = len(args)
        return made


class SubSub(Logged):
    def append(self, value):
        super().append(value)
        self.tag = "sub"

    def pop(self, *args):
        return super().pop(*args)


class Counted(tuple):
    def __new__(cls, *items):
        made = super().__new__(cls, items)
        made.k = len(items)
        return made

    def __len__(self):
        return 99

    def total(self):
        return sum(self)


class Number(int):
    def __new__(cls, value):
        made = super().__new__(cls, value)
        made.unit = "m"
        return made

    def doubled(self):
        return self * 2


class Text(str):
    def loud(self):
        return self.upper() + "!"


class Ratio(float):
    pass


class Group(set):
    def both(self, item):
        self.add(item)
        self.add(-item)


class Fixed(frozenset):
    def size(self):
        return len(self)


class Negated(int):
    def __neg__(self):
        return "negated"


class Telling(list):
    """Records each attribute read; `isinstance` of any object reads `__class__`."""

    seen: ClassVar[list[str]] = []

    def __getattribute__(self, name):
        Telling.seen.append(name)
        return super().__getattribute__(name)


@programs()
class MorePrograms:
    @programs(lambda: (vector(), filled(Overriding, 1, 2)))
    def special_methods(x, items):
        same = items
        items += [5]
        read = (
            *(len(items), bool(items), list(items), [*items], 99 in items, items == 3, items + [1], sum(items)),
            max(items),
        )
        return x + 1, read, same is items, items.added, tuple(items), sorted(items), hash(items), {items: 1}[items]

    @programs(graphs=0)
    def special_methods_of_a_new_one(x):
        items = Overriding([1, 2])
        return len(items), bool(items), list(items), list.__len__(items), list(list.__iter__(items)), items

    def slots_and_new(x):
        slotted = WithSlots([1, x])
        slotted.a = x + 1
        return slotted, WithNew([2]), WithNew([2]).before

    @programs(lambda: (vector(), filled(SubSub, vector())))
    def subclass_of_a_subclass(x, items):
        items.append(x)
        items.append(3)
        items.pop()
        return items[0] + items[1], items.n

    def operators_on_a_new_one(x):
        items = Plain([x, 1])
        items.extend([2, 3])
        items[0] = 5
        del items[1]
        items += [x + 9]
        items *= 2
        items.reverse()
        made = items, items[1:], items + [1], [1] + items, items.copy()
        return *made, type(items.copy()), type(items * 2), items != [1]

    @programs(lambda: (vector(), filled(Plain, vector(), vector())), graphs=1, breaks=1)
    def written_back_before_a_break_and_read_again(x, items):
        items.append(x)
        items.tag = 1
        minidynamo.graph_break("here")
        items.append(x + 1)
        items.tag += 1
        return items[0] + items[3]

    @programs(graphs=1, breaks=1)
    def new_one_across_a_break(x):
        items = Logged("a")
        items.append(x)
        minidynamo.graph_break()
        print(len(items), items.n)
        items.append(x + 1)
        return items

    @programs(lambda: (vector(), filled(Plain, vector(), vector())))
    def given_to_torch(x, items):
        return torch.stack(items), torch.cat([*items, x]), sum(items)

    @programs(lambda: (vector(), filled(Plain, vector(), 2)))
    def unpacked(x, items):
        first, second = items
        return (lambda a, b: a * b)(*items), first * second + x, [*items, x], (*items,)

    @programs(graphs=0)
    def containing_itself(x):
        items = Plain([x])
        items.append(items)
        items.me = items
        return items

    @programs(lambda: (vector(), filled(Plain, 1, 2)), graphs=0)
    def argument_that_gets_itself(x, items):
        items.append(items)
        items.me = items
        return items[2] is items

    @programs(lambda: (vector(), filled(Plain, 1)), lambda: (vector(), filled(Plain, 2)), graphs=2, recompiles=1)
    def used_elements_are_guarded(x, items):
        return x * items[0]

    @programs(lambda: (vector(), Counted(1, vector())))
    def tuples(x, items):
        return items.total() + x, items.k, len(items), items, Counted(1, x), Counted(1, 2).total(), tuple.__len__(items)

    @programs(lambda: (vector(), Number(3)), lambda: (vector(), Number(2)), graphs=2, recompiles=1)
    def numbers(x, n):
        return n.doubled() * x, n + 1, 1 + n, n.unit, x[n - 1], n == 3, [5, 6, 7, 8][n], n

    @programs(lambda: (vector(), Text("ab"), Ratio(2.5)))
    def texts_and_floats(x, text, ratio):
        return text.loud(), text + "c", len(text), text == "ab", {"ab": 1}[text], x * ratio, ratio + 1

    def numbers_made_here(x):
        n = Number(3)
        return n.doubled() * x, n, Text("ab").loud(), Text("q"), Ratio(0.5) * 2

    @programs(lambda: (vector(), Group([1]), Fixed([1, 2])))
    def sets(x, group, fixed):
        group.both(3)
        group.tag = 1
        made = 3 in group, x * len(group), fixed.size(), 1 in fixed, group | {5}
        return *made, type(group | {5}), Group([2]), Fixed([3])

    def numbers_where_python_wants_numbers(x):
        two, three = Number(2), Number(3)
        made = (
            *(range(three), [1, 2, 3][two], three // 2, three == 3, divmod(three, 2), max(two, three)),
            sum([two, three]),
        )
        texts = f"{three:03d}", "".join([Text("a"), "b"]), Text("a b").split()
        texts += {"ab": 1}[Text("ab")], Text("a") in "abc"
        return x.view(two, 2).shape, x**two, made, texts, -three, bool(Number(0)), float(three), round(Ratio(2.567), 1)

    @programs(lambda: (vector(), Negated(3)))
    def numbers_with_operators_of_their_own(x, n):
        return x * n, -n, -Negated(1), n + 1, abs(n)


def test_an_override_added_later_is_noticed():
    class Late(list):
        pass

    f = lambda x, items: x * items[0]
    compiled = minidynamo.compile(f, backend="eager")
    assert torch.equal(compiled(ones(), Late([2])), ones(2))
    Late.__getitem__ = lambda self, index: 7
    assert torch.equal(compiled(ones(), Late([2])), ones(7))


def test_two_arguments_that_become_one_are_noticed():
    def f(x, a, b):
        a.append(x)
        return x * len(b)

    compiled = minidynamo.compile(f, backend="eager")
    assert torch.equal(compiled(ones(), Plain([1]), Plain([1])), ones())
    shared = Plain([1])
    assert torch.equal(compiled(ones(), shared, shared), ones(2))
    assert torch.equal(compiled(ones(), Plain([1]), Plain([1])), ones())


def test_nobody_but_the_program_looks_at_an_instance():
    def f(x, items, others):
        items.append(x)
        others["k"] = items
        return len(items), items[0] + 1, items, lambda: others

    compiled = minidynamo.compile(f, backend="eager")
    for call in (f, compiled, compiled):
        items, others = filled(Telling, ones()), {"k": filled(Telling)}
        Telling.seen.clear()
        count, made, same, _ = call(ones(), items, others)
        assert Telling.seen == ["append"] and count == 2 and same is items and torch.equal(made, ones(2))
