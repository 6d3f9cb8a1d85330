"""Containers that live on and grow with each call: histories, logs, caches, sets of seen values.

Containers that only grow are not read, and therefore not guarded; results, contents and aliases equal eager's.
"""

from __future__ import annotations

import collections
import gc
import sys
import weakref

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Counted

CALLS = 12


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = torch.nn.Linear(3, 3)
        self.history = []
        self.table = {}
        self.logs = collections.defaultdict(list)
        self.recent = collections.deque(maxlen=4)
        self.queue = collections.deque()
        self.seen = set()
        self.counts = collections.Counter()
        self.ordered = collections.OrderedDict(first=0)
        self.words = Words()
        self.options = Options()


class Words(list):
    pass


class Options(dict):
    pass


CONTAINERS = ("history", "table", "logs", "recent", "queue", "seen", "counts", "ordered", "words", "options")
# Programs f(m, x, i) that are called again and again.
compiles = Counted()


def contents(model):
    return {name: getattr(model, name) for name in CONTAINERS}


LENGTHS = []


@LENGTHS.append
def window(xs, x):
    xs.append(float(x.shape[0]))
    if len(xs) > 5:
        xs.pop(0)
    return x


@LENGTHS.append
def emptied_when_full(xs, x):
    if len(xs) >= 7:
        xs.clear()
    xs.append(x)
    return x * 2


@LENGTHS.append
def length_as_a_number(xs, x):
    xs.extend([1, 2])
    return x * len(xs)


@LENGTHS.append
def whether_there_are_any(xs, x):
    y = x * 2 if xs else x
    xs.append(x)
    return y if not xs else y + 1


def _loop_over_a_dict(x, d):
    return x + sum(d[key] for key in d)


def _change_while_looping(x, d):
    for key in d:
        d[key] += 1
    return x + 1


def _loop_over_sets(x, d):
    made = {key + 1 for key in d}
    return x + sum(key for key in made) + sum(key for key in set(d))


@compiles(1)
class Cases:
    def append_to_list(m, x, i):
        loss = m.lin(x).sum()
        m.history.append(loss.detach())
        return loss

    @compiles(3)  # for a length of one, two, and three or more
    def append_and_average_the_last_three(m, x, i):
        m.history.append(x.sum())
        return torch.stack(m.history[-3:]).mean() + len(m.history[-2:])

    @compiles(3)
    def look_at_the_first_two(m, x, i):
        m.history.append(x * i)
        first = m.history[:2]
        first.append(x)
        return sum(first)

    def append_and_look_at_the_last(m, x, i):
        m.history.append(x.sum())
        return m.history[-1] * 2

    def last_of_the_call_before(m, x, i):
        before = m.recent[-1]
        m.recent.append(x.sum())
        return x * before

    @compiles(2)  # in the first call, first and last are the same word
    def first_and_last(m, x, i):
        m.words.append(x)
        return m.words[0] + m.words[-1] + m.words[-2]

    def push_and_pop(m, x, i):
        m.history.append("inner")
        y = m.lin(x)
        assert m.history.pop() == "inner"
        return y

    def extend_list(m, x, i):
        m.history.extend([x + 1, x.shape[0]])
        m.history += [x * 2]
        return x

    def clear_list(m, x, i):
        m.history.clear()
        m.history.append(x + 1)
        return x

    def put_in_front(m, x, i):
        m.history.insert(0, x + 1)
        m.words.insert(0, x)
        m.queue.append(x - 1)
        m.queue.appendleft(x * 2)
        m.queue.appendleft(i)
        return m.history[0] + m.words[0] + m.queue[1] + m.queue[-1] + len(m.queue[1])

    @compiles(2)  # for an empty queue, and one that is not
    def put_in_front_and_read_on(m, x, i):
        m.queue.appendleft(x)
        return x if len(m.queue) == 1 else m.queue[1] * 2 + m.queue[0]

    def delete_all(m, x, i):
        m.history.append(x)
        del m.history[:]
        del m.words[0:]
        m.words.insert(0, x * 2)
        m.history.append(i)
        return m.words[-1]

    def replace_all(m, x, i):
        m.history[:] = [x, *[x + 1]]
        m.words[:] = (word for word in (x, i))
        return m.history[1]

    @compiles(2)  # the last word is another object than the first from the second call on
    def keep_some(m, x, i):
        m.words[:] = [m.words[-1], x]
        return m.words[0] + 1

    def set_item(m, x, i):
        m.table["last"] = x + 1
        m.table.update(sum=x.sum(), size=x.shape)
        return x

    @compiles(2)  # without and with the list
    def append_to_default_list(m, x, i):
        m.logs["train"].append(x.sum())
        return x

    @compiles(3)  # numbers are inputs from the second value on; even and odd numbers differ
    def other_keys_do_not_matter(m, x, i):
        m.table[("even", "odd")[i % 2]] = x
        return x * m.table.get("factor", 2)

    def append_to_deque(m, x, i):
        m.recent.append(x.sum())
        return x

    def add_to_set(m, x, i):
        m.seen.add(tuple(x.shape))
        m.seen.add("name")
        return x + 1

    @compiles(3)  # missing, 1, any number
    def count(m, x, i):
        m.counts["calls"] += 1
        return x * m.counts["calls"]

    def set_item_of_ordered_dict(m, x, i):
        m.ordered["last"] = x
        return x

    def subclasses(m, x, i):
        m.words.append(x)
        m.options["x"] = x
        return x

    def one_element_of_many(m, x, i):
        m.table["a"] = x
        return x + (1 if "b" in m.table else 2)

    @compiles(2)
    def delete_and_set_again(m, x, i):
        m.ordered.pop("a", None)
        m.ordered["a"] = x
        m.ordered["b"] = x + 1
        return x


@pytest.mark.parametrize("name", compiles)
def test_is_compiled_only(name):
    program, expected = compiles[name]
    mine, eager = Model(), Model()
    compiled = minidynamo.compile(program, backend="eager")
    for i in range(CALLS):
        x = torch.full((2, 3), float(i))
        for model in (mine, eager) if i == 0 else ():
            model.recent.append(torch.tensor(1.0)), model.words.append(torch.tensor(1.0))
        mine.table[f"other {i}"] = eager.table[f"other {i}"] = i  # unrelated keys do not matter
        assert torch.equal(compiled(mine, x, i), program(eager, x, i))
        assert repr(contents(mine)) == repr(contents(eager))
    assert compiled.stats.compiles == expected, compiled.why()
    assert compiled.stats.graph_breaks == 0


def test_an_element_that_is_not_there_any_more():
    @minidynamo.compile(backend="eager")
    def program(xs, x):
        try:
            return x * xs[-1]
        except IndexError:
            return x

    x = torch.ones(1)
    for xs, expected in (([1, 2], 2), ([2], 2), ([], 1), ([5, 2], 2), ([7], 7), ([], 1)):
        assert float(program(xs, x)) == expected
    assert program.stats.compiles == 3


def test_lists_of_any_length_are_emptied_by_one_version():
    @minidynamo.compile(backend="eager")
    def program(xs, x):
        del xs[:]
        xs.insert(0, x)
        return x + 1

    for length in range(20):
        xs = [torch.ones(1)] * length
        alias, held = xs, weakref.ref(xs[0]) if xs else None
        program(xs, torch.ones(2))
        assert alias is xs and len(xs) == 1 and xs[0].shape == (2,)
        assert held is None or held() is None
    assert program.stats.compiles == 1


# Programs f(xs, ys, x) that change both ends, or all elements, of lists whose length is not guarded.
CHANGES = []


@CHANGES.append
def in_front_while_looping(xs, ys, x):
    for k, item in enumerate(xs):
        if k < 3:
            xs.insert(0, item)
        if k > 5:
            break
        x = x + k
    return x


@CHANGES.append
def in_front_and_read_everywhere(xs, ys, x):
    xs.insert(0, x)
    ys.insert(0, x + 1)
    y = xs.pop(0)
    xs.insert(0, 3)
    return [*xs], xs[1:], ys[::-1], xs.index(3), len(ys), y is x, x * 2


@CHANGES.append
def in_front_before_and_after_a_break(xs, ys, x):
    xs.insert(0, x)
    minidynamo.graph_break()
    print(len(ys))
    xs.insert(0, x * 2)
    return xs[0] + xs[1]


@CHANGES.append
def exchanged(xs, ys, x):
    xs[:] = [xs[-1], xs[0]]
    ys[:] = ys
    return x + 1


@CHANGES.append
def replaced_by_a_generator(xs, ys, x):
    xs[:] = (y for y in xs[1:])
    return x + 1


@CHANGES.append
def emptied_while_looping(xs, ys, x):
    rest = iter(xs)
    first = next(rest)
    del xs[:]
    xs.append(x)
    return first, next(rest, "end"), x + 1


@CHANGES.append
def emptied_before_an_error(xs, ys, x):
    try:
        del xs[:]
        raise ValueError(len(ys))
    except ValueError as error:
        xs.insert(0, x * 2)
        return str(error)


@pytest.mark.parametrize("cls", [list, Words])
@pytest.mark.parametrize("program", CHANGES, ids=lambda program: program.__name__)
def test_both_ends_and_all_elements(program, cls):
    def two():
        return cls([1, "a"]), cls([2, None, 5]), torch.ones(2)

    def one_twice():
        xs = cls([torch.ones(2)] * 2)
        return xs, xs, torch.zeros(2)

    def short():
        return cls([7]), cls(), torch.ones(2)

    assert_same_as_eager(program, two, one_twice, short, calls=2, backend="eager", graphs=None, breaks=None)


def test_two_names_of_one_list():
    def program(a, b, x):
        a.append(x)
        b.append(x + 1)
        a.append(x + 2)
        return x

    compiled = minidynamo.compile(program, backend="eager")
    for _ in range(2):
        first, second, both = [], [], []
        compiled(first, second, torch.ones(1))
        assert [float(v) for v in first] == [1, 3] and [float(v) for v in second] == [2]
        compiled(both, both, torch.ones(1))
        assert [float(v) for v in both] == [1, 2, 3]
    assert compiled.stats.compiles == 2


def test_reading_behind_an_append_sees_everything():
    @minidynamo.compile(backend="eager")
    def program(xs, x):
        xs.append(x)
        return sum(xs), len(xs), xs == xs, bool(xs)

    xs = [torch.ones(2)]
    for n in range(2, 5):
        total, length, same, some = program(xs, torch.ones(2))
        assert float(total[0]) == n == length == len(xs) and same and some


def test_an_element_that_is_replaced_leaves_the_others_alone():
    @minidynamo.compile(backend="eager")
    def program(xs, x):
        xs[1] = x * 2
        return x

    class Marked:
        pass

    xs = [Marked(), 0, 5]
    for n in range(4):
        before = xs[0]
        program(xs, torch.ones(2) * n)
        assert xs[0] is before and float(xs[1][0]) == 2 * n and xs[2] == 5 + n
        xs[2] += 1  # not read
    assert program.stats.compiles == 1


@pytest.mark.parametrize("cls", [list, Words])
@pytest.mark.parametrize("program", LENGTHS, ids=lambda program: program.__name__)
def test_lengths_are_numbers(program, cls):
    compiled = minidynamo.compile(program, backend="eager")
    mine, eager = cls(), cls()
    for n in range(20):
        x = torch.full((2,), float(n))
        assert torch.equal(compiled(mine, x), program(eager, x))
        assert repr(mine) == repr(eager)
    assert compiled.stats.compiles <= 3, compiled.why()


def test_lengths_of_dicts_sets_and_deques_are_numbers():
    def program(d, s, q, x):
        d["last"] = x
        s.add("last")
        if len(q) > 4:
            q.clear()
        q.append(1)
        return x * len(d) + len(s)

    compiled = minidynamo.compile(program, backend="eager")
    mine, eager = [({}, set(), collections.deque()) for _ in range(2)]
    for n in range(20):
        for d, s, q in (mine, eager):
            d[n] = s.add(n)
            q.append(n)
        x = torch.full((2,), float(n))
        assert torch.equal(compiled(*mine, x), program(*eager, x))
        assert repr(mine) == repr(eager)
    assert compiled.stats.compiles <= 3, compiled.why()


def test_the_length_of_a_deque_that_fills_up_is_a_number():
    def program(buffer, x):
        buffer.append(x * 2)
        buffer.append(x)
        if len(buffer) < 6:
            return None
        return buffer[-1] * len(buffer) + len(buffer) / buffer.maxlen

    compiled = minidynamo.compile(program, backend="eager")
    mine, eager = collections.deque(maxlen=15), collections.deque(maxlen=15)
    for n in range(20):
        x = torch.full((2,), float(n))
        assert repr(compiled(mine, x)) == repr(program(eager, x))
        assert repr(mine) == repr(eager)
    assert compiled.stats.compiles <= 4, compiled.why()


def test_deques_turn():
    def program(xs, x):
        xs.append(xs.popleft())
        xs.appendleft(x)
        return x

    compiled = minidynamo.compile(program, backend="eager")
    mine, eager = collections.deque([1, "a", None], maxlen=4), collections.deque([1, "a", None], maxlen=4)
    for _ in range(3):
        x = torch.ones(1)
        compiled(mine, x), program(eager, x)
        assert [*map(repr, mine)] == [*map(repr, eager)]


def test_an_error_in_the_middle_leaves_what_eager_leaves():
    @minidynamo.compile(backend="eager")
    def program(xs, d, x):
        xs.append(1)
        d["k"] = 2
        if x.shape[0] == 3:
            raise ValueError("three")
        return x

    for n in (2, 3, 2):
        xs, d = [], {}
        if n == 3:
            with pytest.raises(ValueError, match="three"):
                program(xs, d, torch.ones(n))
        else:
            program(xs, d, torch.ones(n))
        assert xs == [1] and d == {"k": 2}


def test_nothing_is_kept_alive():
    history, table = [], {}

    @minidynamo.compile(backend="eager")
    def program(x):
        history.append(x + 1)
        table["last"] = x
        return x

    program(torch.ones(2)), program(torch.ones(2))
    gc.disable()
    try:
        refs = [weakref.ref(tensor) for tensor in (*history, table["last"])]
        history.clear(), table.clear()
        assert [ref() for ref in refs] == [None] * 3
    finally:
        gc.enable()


def test_behind_a_graph_break():
    def program(m, x):
        m.history.append(x)
        m.table["a"] = x
        minidynamo.graph_break()
        print("break")
        m.history.append(x + 1)
        m.table["b"] = x
        return x * 2

    compiled = minidynamo.compile(program, backend="eager")
    mine, eager = Model(), Model()
    for n in range(4):
        x = torch.full((2,), float(n))
        compiled(mine, x), program(eager, x)
        assert repr(contents(mine)) == repr(contents(eager))
    assert compiled.stats.compiles == 2


def test_an_object_that_is_a_key_and_an_argument():
    class Key:
        pass

    @minidynamo.compile(backend="eager")
    def program(k, d, x):
        return x * 2 if k is not None and k in d else x

    one, two = Key(), Key()
    x = torch.ones(1)
    assert float(program(one, {one: 1}, x)) == 2 and float(program(two, {one: 1}, x)) == 1
    assert float(program(two, {two: 1}, x)) == 2 and float(program(one, {two: 1}, x)) == 1


@pytest.mark.parametrize("program", [_loop_over_a_dict, _change_while_looping, _loop_over_sets])
def test_each_step_of_a_loop_looks_at_few_keys(program):
    def looks(items):
        calls = 0

        def count(frame, event, argument):
            nonlocal calls
            calls += event == "call" and frame.f_code.co_name == "__hash__"

        compiled = minidynamo.compile(program, backend="eager")
        table = {key: key for key in range(items)}
        sys.setprofile(count)
        try:
            compiled(torch.ones(2), table)
        finally:
            sys.setprofile(None)
        minidynamo.reset()
        return calls

    few, some, many = map(looks, (45, 90, 180))
    assert 30 < many - some < 2.3 * (some - few)
