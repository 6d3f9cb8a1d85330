# The programs keep the style of users, against the advice of linters.
# ruff: noqa: RUF015

from collections import OrderedDict, defaultdict

import pytest

from minidynamo import compile as compile_function
from minidynamo.core.events import MinidynamoNotice
from tests.end_to_end.programs import Programs, vector

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs(graphs=0)
def keys_are_equal_as_in_python(x):
    d = {1: "a"}
    d[True] = "b"
    d[1.0] = x
    d["1"] = 3
    return d, list(d), None in {None: 1}, (1, 2) in {(1, 2): 3}


@programs(graphs=0, breaks=1)
def unhashable_key_raises(x):
    return {}[[]]


def test_size_changed_in_a_loop_raises():
    def grow(d):
        for key in d:
            d[key + "b"] = 1

    compiled = compile_function(grow, backend="eager")
    with pytest.warns(MinidynamoNotice, match="runs eagerly"), pytest.raises(RuntimeError, match="changed size"):
        compiled({"a": 1})


@programs()
def changed_values_in_a_loop(x):
    d = {"a": x, "b": 1}
    for key, value in d.items():
        d[key] = value * 2
    return d


@programs(graphs=0)
def order_after_deletion(x):
    d = {"a": 1, "b": 2, "c": x}
    del d["a"]
    d["a"] = 4
    return d, list(d), d.popitem(), next(iter(d))


@programs()
def views(x):
    d = {"a": 1, "b": x}
    keys, values = d.keys(), d.values()
    d["c"] = 3
    return (
        x + 1,
        len(keys),
        list(values)[-1],
        "c" in keys,
        1 in values,
        keys & {"a", "z"},
        keys - {"a"},
        d.keys() == {"a", "b", "c"},
    )


@programs()
def nested_default_dict(x):
    d = defaultdict(lambda: defaultdict(int))
    d["a"]["n"] += 2
    d["b"]
    return x * d["a"]["n"], "b" in d, len(d), d["zz"]["n"]


@programs(graphs=0, breaks=1)
def default_dict_without_factory_raises(x):
    return defaultdict(None)["a"]


@programs(lambda: (vector(), OrderedDict(a=1, b=2)))
def ordered_dict_argument(x, d):
    d.move_to_end("a")
    d["c"] = x * 2
    return d.popitem(last=False)


@programs(lambda: (vector(), defaultdict(list)))
def default_dict_argument(x, d):
    d["k"].append(x + 1)
    return len(d)


@programs(graphs=0)
def merging(x):
    a = {"p": 1, "q": 2}
    a.update({"q": x}, r=5)
    a.update([("s", 6)])
    b = {**a, "p": 0} | {"t": 1}
    b |= [("u", 2)]
    return a, b, dict(zip("ab", (1, 2)), c=3)


@programs()
def equality(x):
    return x + 1, {1: [2]} == {1: [2]}, {1: 2} == {1: 3}, {} == [], {"a": 1, "b": 2} == {"b": 2, "a": 1}


class Registry(dict):
    def __missing__(self, key):
        return key + "?"


@programs(lambda: (vector(), Registry(a=1)))
def subclass_argument(x, d):
    d["b"] = x + 1
    return d["a"], len(d), "b" in d, list(d.items())[0]


@programs(graphs=0)
def fromkeys_and_setdefault(x):
    d = dict.fromkeys(["a", "b"], x)
    d.setdefault("c", []).append(1)
    return d, d.get("a"), d.pop("zz", 3)


@programs(graphs=0)
def classes_of_views(x):
    return [type(view) for d in ({}, OrderedDict()) for view in (d.keys(), d.values(), d.items(), iter(d.keys()))]
