import collections
import copy
import operator
from collections import deque

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import Programs, two_vectors

programs = Programs()
test_same_as_eager = programs.test()


Point = collections.namedtuple("Point", ["x", "y"], defaults=[0])


class Plain(list):
    pass


class Asked:
    """An iterable with its own reflected addition."""

    def __init__(self, answer=None):
        self.answer = answer

    def __repr__(self):
        return "Asked"

    def __iter__(self):
        return iter([7])

    def __radd__(self, other):
        return NotImplemented if self.answer is None else (self.answer, other)


class OnTheRight(list):
    def __radd__(self, other):
        return "radd", other

    def __rmul__(self, other):
        return "rmul", other


class OwnSum(list):
    def __add__(self, other):
        try:
            return super().__add__(other)
        except TypeError as error:
            return str(error)


class Two:
    def __repr__(self):
        return "Two"

    def __index__(self):
        return 2


ASKED_BY_NAME = [
    *(([1, 2], other) for other in (5, (1,), [3], OnTheRight([4]), Two(), Asked("a"))),
    *(((1, 2), "ab"), ("ab", OnTheRight([4])), (OwnSum([3]), 5), (deque([1]), [2])),
]


@programs()
class Cases:
    @programs(two_vectors)
    def build_and_return(x, y):
        return [x + y, 1], (x - y, "a"), {"p": x * y, 2: None}, {"set": {1, 2}}, []

    @programs(two_vectors)
    def list_methods(x, y):
        xs = [x]
        xs.append(y + 1)
        xs.insert(0, 5)
        xs.extend((6, 7))
        xs += [8]
        popped = xs.pop()
        first = xs.pop(0)
        xs.reverse()
        xs.remove(7)
        return xs, popped, first, xs.index(6), [1, 2, 1].count(1), len(xs), xs.copy(), xs[:]

    def list_items(x):
        xs = [1, 2, 3, 4, 5]
        xs[0] = x + 1
        xs[1:3] = [7, 8, 9]
        xs[-1] += 1
        del xs[2]
        del xs[-2:]
        return xs, xs[1], xs[-1], xs[::2], xs[5:]

    def slices_of_lists(x):
        xs = [x, x + 1, x + 2, x + 3, x + 4, x + 5]
        xs[1:3] = [x * 5]
        xs[::2] = (x * k for k in range(3))
        del xs[::-3]
        xs[1:1] = xs
        del xs[-2:]
        xs[:2] += x
        return xs

    def list_operators(x):
        a = [1, 2]
        b = [x * 2]
        return a + b, a * 2, 2 * a, a == [1, 2], a != [1], a < [1, 3], 2 in a, [*a, *b], a >= [0, 5, 6]

    def sorting(x):
        xs = [3, 1, 2]
        xs.sort()
        ys = sorted(["bb", "a", "ccc"], key=len, reverse=True)
        zs = sorted([(2, x), (1, x * 2)], key=lambda pair: pair[0])
        return xs, ys, zs

    def tuples(x):
        t = (1, x + 1, 3)
        a, b, c = t
        first, *rest = t
        *init, last = t
        made = a, b, c, first, rest, init, last, t[1:], t + (4,), t * 2
        return *made, t.index(1), t[::2].count(1), 3 in t[2:], len(t), (1, 2) < (1, 3)

    def dict_methods(x):
        d = {"a": 1, "b": x + 1}
        d["c"] = 3
        d.update({"d": 4}, e=5)
        popped = d.pop("a")
        missing = d.pop("zz", None)
        d.setdefault("f", 6)
        d.setdefault("f", 7)
        del d["c"]
        return d, popped, missing, d.get("b"), d.get("nope"), d.get("nope", 2), "b" in d, len(d), d.copy(), d.popitem()

    def dict_views(x):
        d = {"a": x * 2, "b": 2, "c": 3}
        keys, values, items = [], [], []
        for k in d:
            keys.append(k)
        for v in d.values():
            values.append(v)
        for k, v in d.items():
            items.append((k, v))
        return keys, values, items, list(d), list(d.keys()), list(reversed(d)), len(d.items()), "a" in d

    def dict_operators(x):
        a, b = {"p": x + 1}, {"q": 2}
        c = a | b
        c |= {"r": 3}
        made = c, {**a, "z": 1}, {1: 2} == {1: 2}, {1: 2} != {1: 3}, dict(a)
        return *made, dict(k=1), dict([("m", 1)]), dict.fromkeys("ab", 0)

    @programs(breaks=1, graphs=0)
    def missing_index_raises(x):
        return [x][3]

    @programs(lambda: Point(torch.ones(2), torch.zeros(2)))
    def namedtuple_argument(p):
        return p.x + p.y, p._replace(x=p.y - 1)

    @programs(graphs=0)
    def ranges(x):
        r = range(2, 10, 3)
        return x, r[1], len(r), list(r), 5 in r, r.start, r[-1], list(reversed(r)), r[1:], range(3) == range(0, 3, 1)

    @programs(lambda: torch.randn(2, 3), graphs=0)
    def sizes(x):
        s = x.shape
        made = s + (1,), s[0], s[1:], s.numel(), s == (2, 3), len(s)
        return *made, [*s], s[-1] * 2, torch.Size([1, 2]), tuple(s), (4,) + s

    @programs(lambda: ({"a": torch.ones(2), "b": [torch.zeros(2), 3]},))
    def nested_argument(d):
        return d["a"] + d["b"][0] * d["b"][1]

    @programs(lambda: ([torch.ones(2), torch.zeros(2)],), lambda: ([torch.ones(2)] * 3,), graphs=2, recompiles=1)
    def list_argument_of_another_length(xs):
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total

    @programs(lambda: ({"a": torch.ones(2)},), lambda: ({"b": torch.ones(2)},), graphs=2, recompiles=1)
    def dict_argument_with_other_keys(d):
        for value in d.values():
            return value + 1

    def tuple_keys(x):
        d = {(1, "a"): x + 1, (2, "b"): 2}
        return d[1, "a"], (2, "b") in d, {None: 1, True: 2}[None], {x: 3}[x]

    @programs(two_vectors)
    def identity_of_tensors(x, y):
        xs = [x, y]
        return xs[0] is x, xs[1] is x, x is not y, x in [x], [x, y].index(x), x + y

    def shared_list_stays_shared(x):
        inner = [x + 1]
        outer = [inner, inner]
        outer[0].append(2)
        return outer

    @programs(graphs=0)
    def a_list_that_holds_itself_is_found(x):
        xs = [x * 2]
        ys = {"xs": xs}
        ys["xs"].append(3)
        return xs is ys["xs"], len(xs)

    def the_right_side_is_asked_before_a_list_takes_it(x):
        a, b, c, d, e = [1], deque([1]), [1], Plain([1]), [1]
        a += Asked("a")
        b += Asked("b")
        c += Asked()
        d += Asked("d")
        e += x
        return a, b, c, d, e, operator.iadd([1], Asked("i"))


@pytest.mark.parametrize("receiver, other", ASKED_BY_NAME)
def test_sequences_that_are_asked_by_name_do_not_answer_notimplemented(receiver, other):
    """Operators call the reflected method first."""

    def program(a, b):
        answers = []
        for ask in (
            *(lambda: a + b, lambda: a.__add__(b), lambda: a * b, lambda: a.__mul__(b), lambda: a.__rmul__(b)),
            lambda: a.__imul__(b),
        ):
            try:
                answers.append(ask())
            except (TypeError, AttributeError) as error:
                answers.append(str(error))
        return repr(answers)

    given = copy.copy(receiver), copy.copy(receiver)
    assert minidynamo.compile(program, backend="eager")(given[0], other) == program(given[1], other)


class Holder:
    def __init__(self, items):
        self.items = items


def replaces_slices(x, holder):
    holder.items[1:3] = [x * 5]
    holder.items[::2] = [x * 6, x * 7]
    del holder.items[:1]
    holder.items[1:1] = holder.items
    return holder.items[-1:]


@pytest.mark.parametrize("container", [list, Plain])
def test_slices_of_external_lists_are_assigned_in_the_graph(container):
    compiled = minidynamo.compile(replaces_slices, backend="eager", fullgraph=True)
    for start in (1.0, 2.0):
        results = []
        for call in (replaces_slices, compiled):
            x = torch.full((2,), start)
            holder = Holder(container([x, x + 1, x + 2, x + 3]))
            items = holder.items
            returned = call(x, holder)
            assert holder.items is items and type(items) is container
            results.append([each.tolist() for each in (*items, *returned)])
        assert results[0] == results[1]
    assert compiled.stats.graphs == 1
