"""Objects created by functions of the standard library: results have eager's class, text and parts."""

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
# Python may use one object for equal values of these classes.
IMMUTABLE = (int, float, str, bytes, type, tuple, re.Match, types.GenericAlias, types.UnionType)
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
    """Returns the class, the text and, if the object is mutable, the first position of each object of three calls."""
    STORED.clear()
    n, s = int("5000"), "".join(["a", "bc"])
    todo = [n, s, [program(X, n, s, made) for _ in range(2)]]
    todo += [program(X, int("7000"), "".join(["b", "ca"]), made), STORED]
    first: dict[int, int] = {}
    found = []
    for value in todo:
        place = len(found) if isinstance(value, IMMUTABLE) else first.setdefault(id(value), len(found))
        is_new = place == len(found)
        found.append((place, type(value), re.sub("0x[0-9a-f]+", "", repr(value))))
        if is_new and not isinstance(value, torch.Tensor):
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


def dated(x, day, match, alias):
    name, offset = "".join(["a", str(day.hour)]), datetime.timedelta(hours=3)
    new = datetime.timezone(offset, name)
    later, other = day + datetime.timedelta(days=1), datetime.datetime(2020, 1, 1, tzinfo=day.tzinfo)
    return x + 1, name, offset, new, later, day.replace(day=3), other, day.timetz(), day.utcoffset(), new.tzname(day)


def grouped(x, day, match, alias):
    found = WORD.search(match.string)
    return x + 1, found.groupdict(), found.lastgroup


def weeks(x, day, match, alias):
    found = day.isocalendar()
    year, week, _ = found
    return x + 1, found, year, found.year, week


@pytest.mark.parametrize("program", [parts_given, dated, grouped, weeks])
def test_parts_of_what_is_given(program):
    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    match, alias = re.match(".*", "".join(["a", "bc"])), dict[str, int]
    for _ in range(3):
        day = datetime.datetime(2024, 5, 6, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
        assert repr(compiled(X, day, match, alias)) == repr(program(X, day, match, alias))
    assert compiled.stats.compiles == 1


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
def test_keys(cls):
    compiled = minidynamo.compile(keys_in_all_places, backend="eager", fullgraph=True)
    for _ in range(3):
        given, others = [cls(keyed_values()) for _ in range(2)], ({}, {})
        expected, actual = (run(X, d, other) for run, d, other in zip((keys_in_all_places, compiled), given, others))
        assert repr((actual, given[1], others[1])) == repr((expected, given[0], others[0]))
    assert compiled.stats.compiles == 1
