# The programs keep the style of users, against the advice of linters.
# ruff: noqa: B033, C416, F841, PIE800

import pytest

from tests.end_to_end.programs import Programs, vector

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs()
def containers(x):
    return (x, 1), [x + 1, [2]], {"a": x, 1: 2, (1, "b"): 3, None: 4}, {1, 2, 2}, {"p": 1, "q": x}


@programs(graphs=0)
def unpacked_into_containers(x):
    a, b = [1, x], {"k": 1}
    return [*a, 3, *range(2)], (*a, *"ab"), {**b, "k": 2, **{"z": x}}, {*a[:1], 5}


@programs()
def unpacking(x):
    a, (b, *c), d = 1, "xyz", x
    (*e,) = range(3)
    first, second = x[:2]
    return a, b, c, d + first + second, e


@programs(graphs=0, breaks=1)
def too_many_values_raise(x):
    a, b = [1, 2, 3]


@programs(graphs=0, breaks=1)
def too_few_values_raise(x):
    a, *b, c = [1]


@programs(graphs=0, breaks=1)
def unhashable_key_raises(x):
    return {[1]: 2}


@programs()
def comprehensions(x):
    a = [i * x for i in range(4) if i % 2]
    b = {i: j for i, j in zip("ab", (x, 1))}
    c = {i % 2 for i in range(4)}
    return a, b, c, [[i + j for j in range(2)] for i in range(2)]


@programs(lambda: (vector(), 3.14159, "name"))
def formatted_text(x, number, text):
    width = 8
    return f"{number:.2f} {text!r:>{width}} {text} {x.shape[0]:03d} {len(text)=}", x + 1


@programs(lambda: (vector(), [1, 2]), lambda: (vector(), 5), lambda: (vector(), "ab"), graphs=3)
def match_sequences_and_values(x, value):
    match value:
        case [a, b]:
            return x * a * b
        case 5:
            return x - 5
        case _:
            return x + 1


@programs(lambda: (vector(), {"k": 1}), graphs=None, breaks=None)
def match_mapping(x, value):
    match value:
        case {"k": k}:
            return x * k
    return x


class Key:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


KEY = Key()


@programs(graphs=0)
def key_with_its_own_hash(x):
    return {KEY: 1}[KEY]


@programs(graphs=None, breaks=None)
def built_across_graph_breaks(x):
    a = [1, 2]
    parts = [*a, x.sum().item(), *a, x.mean().item()]
    named = {"a": 1, **{"b": 2}, "c": x.max().item()}
    return parts, named, {*a, x.min().item()}, [x[i].item() for i in range(3)]


@programs(lambda: (vector(), iter([1, 2, 3])), graphs=None, breaks=None)
def comprehensions_over_an_iterator(x, items):
    return [x * n for n in items], {n for n in items}, {n: x + n for n in items}
