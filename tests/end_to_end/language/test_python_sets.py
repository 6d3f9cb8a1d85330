"""Sets in captured programs: their algebra, and loops in eager's order."""

import pytest
import torch

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, rows_of

programs = Programs()
test_same_as_eager = programs.test()


NAMES = {"w", "e", "r", "t"}


def _shown(value):
    """Returns a description of nested sets without their order, and their classes."""
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return [type(value), sorted(value)] if isinstance(value, set | frozenset) else value


class SetsThatChange:
    def _changed_one_by_one(x, s, t):
        s.add(40)
        s.add(8)
        s.discard(0)
        s.discard(77)
        t.clear()
        t.add(24)
        t.add(16)
        return x

    def _changed_by_others(x, s, t):
        s |= t
        s -= {8, 40}
        s.update({64, 0, 16}, [32, 1], dict.fromkeys([9, 5]), t)
        t.difference_update([1], s)
        return x

    def _exchanged(x, s, t):
        s &= {0, 8, 16, 24, 32, 40, 1}
        t ^= {0, 3, 8}
        return x

    def _results(x, s, t):
        made = s | t, s & t, s - t, s ^ t, set(s), frozenset(t), s.copy(), s.union([64, 3], {0: 1}), s.difference([8])
        s.add(99)
        t.discard(8)
        return x, *made, s.difference([0])

    def _views(x, s, t):
        d = dict.fromkeys([8, 0, 16, 3])
        return x, d.keys() | s, d.keys() - s, d.keys() & t, s & d.keys(), s - d.keys(), d.keys() ^ t, d.keys() & {8, 0}

    def _made_here(x, s, t):
        a = {0, 8, 16, 24, 32}
        a.discard(8)
        b, c = a - {0}, a & {32, 24, 16}
        b.add(40)
        d = frozenset([8, 0]) | c
        return x, a, b, c, d, [n for n in b], list(d), [a.pop(), a.pop()], str(c)

    def _emptied(x, s, t):
        a = {0, 8, 16}
        a.pop()
        a.clear()
        a.update(t)
        s -= s
        return x, a


_NAMES = {"constant", "reflect", "replicate"}


class _Named(set):
    pass


class _Backwards(frozenset):
    def __iter__(self):
        return reversed(sorted(super().__iter__()))


class Mark:
    pass


@programs()
class Cases:
    def algebra(x):
        a, b = {1, 2, 3}, {2, 3, 4}
        return (
            x + 1,
            (a & b, a | b, a - b, a ^ b),
            (a <= b, a < b, a >= {1}, a.issubset(b), a.issuperset({1}), a.isdisjoint({7})),
            (a.union([5], [6]), a.intersection([1], [1, 2]), a.difference([1]), a.symmetric_difference([1, 9])),
            ({1, 2} == {2, 1}, 3 in a, len(a), sorted(a), sum(a), max(a), min(b)),
            ({*a, *b}, set(), set("hello"), {i % 2 for i in range(5)}, {1} | {True}),
        )

    def changes(x):
        a, b = {1, 2, 3}, {2, 3, 4}
        c, d, e, f, g, h = (a.copy() for _ in range(6))
        c.update([9], {8})
        c.discard(1)
        c.remove(2)
        d ^= b
        e.symmetric_difference_update(b)
        f &= b
        g -= b
        h |= b
        return x * 2, a, c, d, e, f, g, h

    def frozen(x):
        a, b = {1, 2, 3}, frozenset([1, 2])
        made = x + 1, b | {3}, b & a, {b: 1}[frozenset([2, 1])], b == {1, 2}, type(b | a)
        return *made, type(a | b), {1, 2} in {b}, b.union([4])

    def loops_over_new_sets(x):
        out = []
        for n in {3, 1, 2}:
            out.append(n)
        for name in {"a", "b", "cc", "dd", "e", "f"}:
            out.append(name)
        words = set(["q", "w", "e"])
        words.add("r")
        words.discard("q")
        made = x + len(out), out, list(words), list({c + "x" for c in "abcdefg"})
        made += list(set("hello") | {"a", "b"}), list(words.copy()), ",".join(list(frozenset("xyz")))
        return *made, [k for k in set({"a": 1, "b": 2})], list({(1, "a"), (2, "b"), (0, None)})

    def popping(x):
        words = {"aa", "bb", "cc", "dd", "e", "f"}
        first = words.pop()
        words.update({"g", "h"})
        return x * 2, first, words.pop(), list(words)

    def sets_that_are_returned(x):
        words = set("hello")
        words.update({"a", "b"})
        return x + 1, words, {8, 0, 16}, [list(s) for s in (words, {8, 0, 16})]

    @programs(graphs=0)
    def loop_over_a_global(x):
        return x, list(NAMES), [name + "!" for name in NAMES], sorted(NAMES)

    @programs(lambda: (torch.ones(2), {"a", "b", 3, None}))
    def loop_over_an_argument(x, names):
        return x + 1, [n for n in names], list(names)

    @programs(breaks=None, graphs=None)
    def a_break_in_a_loop_over_a_set(x):
        for name in {"a", "b", "c"}:
            print(name)
            x = x + 1
        return x

    @programs(lambda: (torch.ones(2), {"a", "b"}), breaks=1, graphs=None)
    def a_changed_argument_has_no_known_order(x, names):
        y = x + 1
        names.add("c")
        names.discard("a")
        return y, sorted(names), len(list(names))

    def texts(x):
        made = {"b", "a", 1}
        made.discard("a")
        made.add(x.shape[0])
        own = (str(_Named([1, 2])), repr(_Named()), f"{_Backwards((3, 4))}")
        return x + 1, f"one of {_NAMES}", str(made), f"{[{1, 2}, frozenset({3})]}", str(set()), repr(frozenset()), own


def test_another_order_of_equal_items_is_noticed():
    f = lambda x, items: (x, list(items))
    compiled = minidynamo.compile(f, backend="eager")
    # 0 and 8 collide in a small table: the first added comes first.
    for made in ([0, 8], [8, 0], [0, 8]):
        items = set(made)
        assert compiled(torch.ones(1), items)[1] == list(items)
    assert list(set([0, 8])) != list(set([8, 0]))


def test_sets_that_change_while_they_are_looped_over():
    def f(x):
        items = {1}
        for item in items:
            items.add(item + 1)
        return x

    compiled = minidynamo.compile(f, backend="eager")
    with pytest.warns(MinidynamoNotice, match="runs eagerly"), pytest.raises(RuntimeError, match="changed size"):
        compiled(torch.ones(2))


def test_items_of_an_argument_are_guarded():
    def f(x, items):
        for item in items:
            x = x * item
        return x

    inputs = [lambda n=n: (torch.ones(1), set(range(1, n))) for n in (2, 4, 3)]
    assert_same_as_eager(f, *inputs, recompiles=2)


@pytest.mark.parametrize("program", rows_of(SetsThatChange))
def test_changed_and_returned_sets_have_the_items_of_eager(program):
    compiled = minidynamo.compile(program, backend="eager", recompile_limit=20)
    histories = [([0, 8, 16, 1], [8, 0, 32]), ([8, 16, 1, 0], [32, 8, 0]), (range(30), [0]), ([], [8])]
    for first, second in histories:
        runs = []
        for run in (program, compiled):
            s, t = set(first), set(second)
            s.discard(1)
            runs.append(_shown([run(torch.ones(1), s, t), s, t]))
        assert runs[0] == runs[1]
    assert "MD231" not in str(compiled.breaks())


def test_where_the_order_of_a_changed_set_is_taken_the_frame_is_cut():
    def f(x, s):
        y = x + 1
        s.add(40)
        z = s.pop() if len(s) > 1 else 0
        return y, frozenset(s), sorted(s), s | {3}, z

    compiled = minidynamo.compile(f, backend="eager")
    for items in ([0, 8], [8, 0]):
        s, t = set(items), set(items)
        assert _shown(f(torch.ones(1), s)) == _shown(compiled(torch.ones(1), t)) and s == t
    assert "MD231" in str(compiled.breaks())


class Named:
    """An object whose hash is computed from an attribute."""

    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return isinstance(other, Named) and self.name == other.name


class Plain:
    def __init__(self, name):
        self.name = name


@pytest.mark.parametrize(
    "make", [lambda o: {o}, lambda o: frozenset([o]), lambda o: {o: 1}, lambda o: ({(o, 1): o}, frozenset([(o, 2)]))]
)
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("cls", [Named, Plain])
def test_sets_and_keys_that_refer_to_themselves(make, is_first, cls):
    def f(x):
        obj = cls("a")
        obj.group = make(obj)
        return x + 1, (obj.group, obj) if is_first else (obj, obj.group)

    for run in (f, minidynamo.compile(f, backend="eager")):
        group, obj = sorted(run(torch.ones(1))[1], key=lambda each: hasattr(each, "group"))
        assert type(group) is type(make(obj)) and obj.group is group and group == make(obj)
