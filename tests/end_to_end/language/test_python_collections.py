"""collections, heapq and bisect in captured programs."""

import bisect
import collections
import heapq
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque

import pytest
import torch

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


class Ranked:
    """Records its comparisons."""

    def __init__(self, rank, compared):
        self.rank, self.compared = rank, compared

    def __lt__(self, other):
        self.compared.append((self.rank, other.rank))
        return self.rank < other.rank


class Doubling(dict):
    def __setitem__(self, key, value):
        dict.__setitem__(self, key, value * 2)


Pair = collections.namedtuple("Pair", "first second", defaults=[2])


class Noting:
    """A key that records its hash and comparison calls; keys of one parity collide in a dict."""

    asked: list = []

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        self.asked.append((self.number, other.number))
        return self.number == other.number

    def __hash__(self):
        self.asked.append(self.number)
        return self.number % 2 + 7


@programs()
class Cases:
    def deques(x):
        d = deque([1, 2, 3])
        d.rotate(1)
        d.rotate(-2)
        d.extendleft([x.shape[0], 5])
        d.insert(1, 9)
        d.remove(9)
        e = d.copy()
        e.reverse()
        made = x + 1, (d, e, d.count(5), d.index(2), 5 in d, d == e, d + deque([1]), d * 2, list(reversed(d)))
        return *made, (d.popleft(), d.pop(), deque([1]) < deque([2]), bool(deque()), repr(deque([1, "a"])))

    def deques_of_bounded_length(x):
        d = deque(maxlen=2)
        for i in range(4):
            d.append(x * i)
        d.appendleft(1)
        d.extend([2, 3, 4])
        d.extendleft([7])
        e = deque([1, 2, 3], maxlen=3)
        e.rotate()
        e += [x, 5]
        f = deque([1], 2)
        f *= 3
        made = x + 1, d, d.maxlen, len(d), d[0], e, e + deque([6]), e * 2
        return *made, e.copy(), f, repr(f), deque([1, 2], 0), deque([1]).maxlen

    @programs(
        lambda: (vector(), deque([1, 2, 3], maxlen=3)), lambda: (vector(), deque([1, 2, 3])), graphs=2, recompiles=1
    )
    def deques_from_outside(x, d):
        d.append(x)
        d.rotate(1)
        return x + 1, d[0], len(d), d.maxlen, list(d)

    def a_full_deque_takes_no_more(x):
        d = deque([1, 2], 2)
        try:
            d.insert(0, 3)
        except IndexError as error:
            return str(error), x * 2, d

    @programs(lambda: (vector(), deque([1, 2])), breaks=None, graphs=None)
    def deques_have_no_slices(x, d):
        errors = []
        for change in (lambda: d[:], lambda: d.__setitem__(slice(None), [3]), lambda: d.__delitem__(slice(1))):
            try:
                change()
            except TypeError as error:
                errors.append(str(error))
        return errors, x * 2, d

    @programs(breaks=None, graphs=None)
    def ordered_dicts(x):
        d = OrderedDict([("a", 1), ("b", x), ("c", 3)])
        d.move_to_end("a")
        d.move_to_end("c", last=False)
        key, value = d.popitem(last=False)
        e = OrderedDict(d)
        e["z"] = 0
        made = x + 1, d, key, value, list(reversed(d)), e == d
        return *made, d | {"q": 1}, OrderedDict.fromkeys("aba", 1), repr(OrderedDict(a=1))

    def default_dicts(x):
        d, e = defaultdict(list), defaultdict(lambda: 0)
        d["a"].append(x)
        d["b"]
        for c in "abca":
            e[c] += 1
        nested = defaultdict(lambda: defaultdict(int))
        nested["x"]["y"] += 2
        made = x + 1, d, dict(e), nested["x"]["y"], "q" in d, d.get("q")
        return *made, d.default_factory is list, len(d), sorted(e.items())

    @programs(breaks=None, graphs=None)
    def counters(x):
        c, d = Counter("abracadabra"), Counter(a=1, b=2)
        d.update("aab")
        d["z"] += 1
        return (
            (x + 1, [k for k, _ in c.most_common(2)], c.most_common(), c["q"], c.total(), sorted(c.elements())[:3], d),
            (dict(c + d), dict(c - d), dict(c & d), dict(c | d), +d, -d, c == d, d <= c, repr(d)),
        )

    @programs(lambda: (vector(), Counter("aab")))
    def counter_from_outside(x, c):
        c["a"] += 1
        c.update("z")
        c.subtract(["b"])
        return x * c["a"], c.most_common(1)

    def chained_maps(x):
        c = ChainMap({"a": 1}, {"a": 2, "b": x})
        c["n"] = 5
        return x + 1, c["a"], c["b"], len(c), list(c), c.maps[0], c.new_child({"a": 7})["a"], "b" in c, c.get("zz", 3)

    @programs(breaks=None, graphs=None)
    def heaps_and_bisection(x):
        heap = [3, 1, 2, 5, 4]
        heapq.heapify(heap)
        heapq.heappush(heap, 0)
        smallest = heapq.heappop(heap)
        items = [1, 3]
        bisect.insort(items, 2)
        entries = [(2, "b", x), (1, "a", x + 1)]
        heapq.heapify(entries)
        return (
            (heap, smallest, items, bisect.bisect_left([1, 2, 3], 2), bisect.bisect([1, 2], 2)),
            (heapq.nlargest(2, [1, 3, 2]), heapq.nsmallest(1, [3, 1]), heapq.heappop(entries)[2]),
        )

    @programs(breaks=None, graphs=None)
    def the_best_of_many(x):
        compared = []
        ranked = [Ranked(rank, compared) for rank in (5, 3, 8, 1, 9, 2, 7, 3)]
        found = [
            *(heapq.nsmallest(3, ranked), heapq.nlargest(3, ranked), heapq.nsmallest(1, ranked)),
            *(heapq.nlargest(2, iter(ranked), key=lambda one: -one.rank), heapq.nlargest(20, ranked)),
        ]
        made = x + 1, [[one.rank for one in best] for best in found], compared
        return *made, heapq.nlargest(0, [1]), heapq.nsmallest(1, [])

    def sentinels(x):
        missing, other = object(), object()
        found = {"a": x}.get("b", missing)
        return x + 1, found is missing, found == other, {missing: 1}.get(other), [missing, missing], type(other)

    @programs(graphs=2, breaks=1)
    def made_from_keys(x):
        make = dict.fromkeys
        minidynamo.graph_break()
        return make, make("ab", x), Doubling.fromkeys("ab", x), OrderedDict.fromkeys(iterable="ab", value=1)

    def views(x):
        d, e = {"a": 1, "b": x, "c": 3}, {"b": 1, "q": 2}
        return (
            (sorted(d.keys() & e.keys()), sorted(d.keys() | e.keys()), sorted(d.keys() - e), sorted(d.keys() ^ e)),
            (list(reversed(d)), list(reversed(d.values()))[0], len(d.items()), ("a", 1) in d.items(), 1 in d.values()),
            (d.keys() == {"a", "b", "c"}, d.keys() != e.keys(), d.keys() <= set("abcd"), d.keys() > e.keys()),
            (d.keys() < e.keys(), {"a"} < d.keys(), e.items() >= {("q", 2)}, e.items() == {"q": 2, "b": 1}.items()),
            (x + 1, d.keys().isdisjoint(e), e.items() & {("b", 1)}, d.keys() == d.values()),
        )

    def named_tuples(x):
        pair = Pair(x)
        made = x + 1, pair, pair._replace(second=x), Pair._fields
        return *made, pair._asdict()["second"], Pair._make([1, 2]), pair[1:]


@pytest.mark.parametrize("change", [lambda d: d.append(1), lambda d: d.rotate(1)])
def test_deques_that_change_while_they_are_looped_over(change):
    def f(x):
        d = deque([1, 2, 3])
        for item in d:
            if item == 2:
                change(d)
        return x

    compiled = minidynamo.compile(f, backend="eager")
    with pytest.warns(MinidynamoNotice, match="runs eagerly"), pytest.raises(RuntimeError, match="mutated"):
        compiled(torch.ones(2))


@pytest.mark.parametrize(
    "look_up",
    [
        *(lambda d: d[Noting(3)], lambda d: d.get(Noting(9), 1), lambda d: d.pop(Noting(3))),
        *(lambda d: d.pop(Noting(9), None), lambda d: d.__delitem__(Noting(5)), lambda d: d.setdefault(Noting(3), 5)),
        lambda d: Noting(5) in d,
    ],
)
def test_keys_that_note_what_they_are_asked_are_asked_once(look_up):
    def program(x):
        table = {Noting(1): 1, Noting(3): 3, Noting(5): 5}
        Noting.asked.clear()
        return x + 1, look_up(table), [*Noting.asked]

    compiled = minidynamo.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2))[1:] == program(torch.ones(2))[1:]
