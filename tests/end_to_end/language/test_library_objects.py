"""Objects created by functions of the standard library: results have eager's class, text, parts and identity."""

import collections
import collections.abc
import datetime
import functools
import itertools
import operator
import re
import types
import typing

import pytest
import torch

import minidynamo

# Texts of objects are read after breaks, and frames that keep Python-only objects run eagerly.
pytestmark = pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")

X = torch.ones(2)
STORED: list = []
WORD = re.compile(r"(?P<first>\w)(\w*)")
FIRST, UPPER = operator.itemgetter(0), operator.methodcaller("upper")
T = typing.TypeVar("T")


def moved_on(iterator):
    next(iterator)
    return iterator


def failure(call, *args, **kwargs):
    try:
        return call(*args, **kwargs)
    except TypeError as error:
        return type(error), str(error)


class Counting:
    made = 0

    def __class_getitem__(cls, key):
        cls.made += 1
        return [cls.made, key]


def counted(key):
    Counting.made = 0
    return [Counting[key], Counting[key, key], Counting.made]


PROGRAMS = {
    "getters": lambda n, s: [operator.itemgetter(n, s), operator.attrgetter("a.b", "c"), operator.itemgetter(slice(n))],
    "callers": lambda n, s: [operator.methodcaller("split", s, maxsplit=n), operator.methodcaller("upper")],
    "called getters": lambda n, s: (
        lambda g: [g, g, g(s), [*map(g, [s, "xy"])], type(g), g == g, g == FIRST, {g: n}[g]]
    )(operator.itemgetter(1)),
    "getters from outside": lambda n, s: [FIRST, FIRST(s), UPPER(s), type(FIRST), FIRST is UPPER],
    "what getters are": lambda n, s: (
        lambda g: [isinstance(g, operator.itemgetter), callable(g), hasattr(g, "__name__")]
    )(operator.itemgetter(n)),
    "getters in partials": lambda n, s: [functools.partial(operator.itemgetter(0), s), sorted([s, "aa"], key=FIRST)],
    "wrong getters": lambda n, s: [
        failure(operator.itemgetter),
        failure(operator.attrgetter, n),
        failure(operator.methodcaller, n),
        failure(operator.itemgetter, item=s),
    ],
    "wrong calls of getters": lambda n, s: [
        failure(operator.itemgetter(0), s, s),
        failure(operator.attrgetter("a")),
        failure(FIRST),
        failure(UPPER, s, key=n),
    ],
    "parts of partials": lambda n, s: (lambda p: [p.args, p, p.keywords, p.args is p.args, p.func, p])(
        functools.partial(max, n, s, key=len)
    ),
    "parts of errors": lambda n, s: (lambda e: [e.args, e, e.args[0] is n, StopIteration(s).value is s])(
        ValueError(n, s)
    ),
    "matches": lambda n, s: (lambda m: [m.string, m, m.string is s, m.re is WORD, m["first"], m.groups(), m.regs])(
        WORD.search(s)
    ),
    "matches of all": lambda n, s: [
        re.match(".*", s).group() is s,
        re.fullmatch(".*", s),
        re.match(".*", s + "b").string,
    ],
    "matches in turn": lambda n, s: [re.finditer("[a-c]", s), moved_on(WORD.finditer(s, 0)), type(re.finditer("a", s))],
    "loops over matches": lambda n, s: [[m.string is s, m] for m in re.finditer("[a-c]", string=s)],
    "last matches": lambda n, s: [
        moved_on(moved_on(moved_on(re.finditer("[a-c]", s)))),
        enumerate(re.finditer("b", s)),
    ],
    "unions": lambda n, s: [
        *(int | str, int | str, int | None, None | int, (int | str) | float, int | list[int], int | int),
    ],
    "parts of unions": lambda n, s: (lambda u, a: [u.__args__, u, a | u, (a | None).__args__[0] is a, u.__args__[0]])(
        int | str, list[int]
    ),
    "checks of unions": lambda n, s: [isinstance(n, int | str), isinstance(s, int | None), issubclass(bool, int | str)],
    "generic classes": lambda n, s: (
        lambda a: [a, a.__args__, list[int], a == list[int], dict[str, a], tuple[int, ...]]
    )(list[int]),
    "starred": lambda n, s: [*tuple[int, str]],
    "variables": lambda n, s: [list[T], list[T][int], list[T].__args__, typing.List[int]],  # noqa: UP006
    "abstract classes": lambda n, s: [collections.abc.Callable[[int], str], collections.abc.Sized, re.Pattern[str]],
    "keys": lambda n, s: [{list[int]: n}, {int | str: s}, {list[int]: s}[list[int]], {int | str}],
    "classes of the program": lambda n, s: counted(s),
    "half done": lambda n, s: [
        moved_on(itertools.product([n, s], repeat=2)),
        moved_on(itertools.combinations([n, s, 3], 2)),
        moved_on(itertools.permutations((n, s))),
    ],
}


def whole(x, n, s, made):
    STORED.append(made(n, s))
    return x + 1, made(n, s), made(n, s)


def broken(x, n, s, made):
    kept = made(n, s)
    minidynamo.graph_break()
    return x + 1, kept, repr(kept)


def parts_of(value):
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | tuple | set):
        return [*value]
    if isinstance(value, types.GenericAlias | types.UnionType):
        return [value.__args__]
    if isinstance(value, re.Match):
        return [value.string, value.re, value.span()]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, operator.itemgetter | operator.attrgetter | operator.methodcaller):
        return [value.__reduce__()[1]]
    if isinstance(value, BaseException):
        return [value.args]
    return [*itertools.islice(value, 9)] if isinstance(value, collections.abc.Iterator) else []


def seen(program, made):
    """Returns the class, the text and the first position of each object of three calls."""
    STORED.clear()
    n, s = int("5000"), "".join(["a", "bc"])
    todo = [n, s, [program(X, n, s, made) for _ in range(2)]]
    todo += [program(X, int("7000"), "".join(["b", "ca"]), made), STORED]
    first: dict[int, int] = {}
    found = []
    for value in todo:
        place = first.setdefault(id(value), len(found))
        found.append((place, type(value), re.sub("0x[0-9a-f]+", "", repr(value))))
        if place == len(found) - 1 and not isinstance(value, torch.Tensor):
            todo += parts_of(value)
    return found


@pytest.mark.parametrize("program", [whole, broken])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_leaves_a_frame(name, program):
    expected = seen(program, PROGRAMS[name])
    actual = seen(minidynamo.compile(program, backend="eager"), PROGRAMS[name])
    assert [pair for pair in zip(expected, actual, strict=True) if pair[0] != pair[1]] == []


@pytest.mark.parametrize(
    "name", ["called getters", "getters", "matches", "matches in turn", "unions", "generic classes", "half done"]
)
def test_nothing_breaks(name):
    compiled = minidynamo.compile(whole, backend="eager", fullgraph=True)
    for n in (5000, 5000):
        compiled(X, n, "abc", PROGRAMS[name])
    assert compiled.stats.compiles == 1


def parts_given(x, day, match, alias):
    return x + 1, day, day.tzinfo, day.day, match.string, match.group(), typing.get_args(alias), alias.__args__, alias


def test_parts_of_what_is_given():
    zone = lambda: datetime.timezone(datetime.timedelta(hours=1))
    compiled = minidynamo.compile(parts_given, backend="eager", fullgraph=True)
    match, alias = re.match(".*", "".join(["a", "bc"])), dict[str, int]
    for day in [datetime.datetime(2024, 5, 6, tzinfo=zone()) for _ in range(3)]:
        expected, actual = parts_given(X, day, match, alias), compiled(X, day, match, alias)
        assert all(one is other for one, other in zip(expected[1:], actual[1:]))
    assert compiled.stats.compiles == 1


def dated(x, day, zone, hours):
    name, offset = "".join(["a", str(hours)]), datetime.timedelta(hours=hours)
    new = datetime.timezone(offset, name)
    later, other = day + datetime.timedelta(days=1), datetime.datetime(2020, 1, 1, tzinfo=zone)
    return x + 1, name, offset, new, later, day.replace(day=3), other, day.timetz(), zone.tzname(day), day.utcoffset()


def parts_of_dates(day, zone, name, offset, new, later, replaced, other, clock, zone_name, offset_of_day):
    """Returns the identities between results, arguments and their parts."""
    zones = [each.tzinfo is day.tzinfo for each in (later, replaced, clock)]
    offsets = [each.utcoffset() is day.utcoffset() for each in (later, replaced, clock)]
    own = [new.utcoffset(None) is offset, new.tzname(None) is name, other.tzinfo is zone]
    return [*zones, *offsets, *own, zone_name is zone.tzname(None), offset_of_day is day.utcoffset()]


def test_dates_hold_the_zones_and_offsets_that_they_are_made_of():
    compiled = minidynamo.compile(dated, backend="eager", fullgraph=True)
    for name in ["one", "one", "two"]:
        zone = datetime.timezone(datetime.timedelta(hours=1), "".join([name, " zone"]))
        day = datetime.datetime(2024, 5, 6, tzinfo=zone)
        for run in (dated, compiled):
            _, *results = run(X, day, zone, 3)
            assert parts_of_dates(day, zone, *results) == [True] * 11
    assert compiled.stats.compiles == 2  # to Python, zones with different names are equal


LETTERS = re.compile("".join(["(?P<first", " letter>a)".replace(" ", "_")]))


def grouped(x, text):
    found = LETTERS.search(text)
    assert found is not None
    return x + 1, found.groupdict(), found.lastgroup


def test_names_of_groups_are_those_of_the_pattern():
    compiled = minidynamo.compile(grouped, backend="eager", fullgraph=True)
    (name,) = LETTERS.groupindex
    for _ in range(2):
        _, groups, last = compiled(X, "xa")
        assert last is name
        assert next(iter(groups)) is name


class Backwards(dict):
    def __iter__(self):
        return reversed([*dict.__iter__(self)])


def keyed_values():
    """Returns numbers, texts, bytes, dates and tuples that are not literals."""
    number = int("1000000")
    return {
        " ".join(["a", "key"]): 1,
        number: 2,
        (" ".join(["b", "key"]), (number + 1,)): 3,
        float("2.75"): 4,
        bytes([0, 65]): 5,
        datetime.date(2024, 1, number // 500_000): 6,
    }


def keys_in_all_places(x, d, other):
    first, *rest = d
    for key, value in d.items():
        other[key] = value
    copied, listed, doubled = {**d}, list(d.keys()), {key: [key] for key in d}
    d.clear()
    return x + 1, [first, *rest], [*listed, *copied, *doubled, *(key for [key] in doubled.values())]


@pytest.mark.parametrize("cls", [dict, collections.OrderedDict, Backwards])
def test_keys_are_those_that_were_given(cls):
    compiled = minidynamo.compile(keys_in_all_places, backend="eager", fullgraph=True)
    for _ in range(3):
        d, other = cls(keyed_values()), {}
        keys, given = [*d], {key: key for key in dict.__iter__(d)}
        _, looped, found = compiled(X, d, other)
        assert all(one is key for one, key in zip(looped, keys, strict=True))
        assert all(given[key] is key for key in (*found, *other))
        assert not d
        assert len(found) == 4 * len(keys)
    assert compiled.stats.compiles == 1


def elements_in_all_places(x, names, frozen):
    lowest = min(names)
    names.discard("no key")
    return x + 1, [lowest, sorted(names), max(frozen)], names | {1}, [*frozen]


def test_elements_are_those_that_were_given():
    compiled = minidynamo.compile(elements_in_all_places, backend="eager", fullgraph=True)
    for _ in range(3):
        names, frozen = {" ".join(["a", letter]) for letter in "bc"}, frozenset([int("1000000")])
        given = {each: each for each in (*names, *frozen)}
        _, (lowest, ordered, largest), joined, listed = compiled(X, names, frozen)
        found = [lowest, *ordered, largest, *joined, *listed]
        assert len(found) == 8
        assert all(given.get(each, each) is each for each in found)
    assert compiled.stats.compiles == 1


def weeks(x, day):
    found = day.isocalendar()
    year, week, _ = found
    return x + 1, found, year, found.year, week


def test_the_year_of_a_week_is_that_of_its_tuple():
    compiled = minidynamo.compile(weeks, backend="eager", fullgraph=True)
    for _ in range(2):
        _, found, year, again, week = compiled(X, datetime.date(2024, 5, 6))
        assert found == (2024, 19, 1)
        assert found[0] is found.year is year is again
        assert week == 19
