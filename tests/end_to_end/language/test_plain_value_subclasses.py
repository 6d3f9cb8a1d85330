"""Methods and operators of subclasses of text, numbers and tuples: an unchanged value is a new object of the base
class."""

import pytest
import torch

import minidynamo


class Text(str):
    pass


class Whole(int):
    pass


class Real(float):
    pass


class Row(tuple):
    pass


class Data(bytes):
    pass


class Group(frozenset):
    pass


class Items(list):
    pass


class Table(dict):
    pass


def texts(o):
    made = [str(o), str(o), f"{o}", format(o), "{}".format(o), o.__str__(), o.format(), "".join([o])]  # noqa: UP032
    kept = [o.strip(), o.strip(), o[:], o * 1, o + "", "" + o, o.replace("z", ""), o.ljust(1), o.removeprefix("q")]
    kept += [o.lower(), o.expandtabs(), o.zfill(1), o.translate({}), o.center(1), str.strip(o), max(o, "a")]
    return made, kept, o.split("z"), o.partition("z"), o.rpartition("z"), o.splitlines(), o.encode(), o.join("xy")


def data(o):
    kept = [bytes(o), bytes(o), o.strip(), o[:], o * 1, o + b"", o.replace(b"z", b""), o.ljust(1), o.lower()]
    return kept, o.split(b"z"), o.partition(b"z"), o.removeprefix(b"q"), b"".join([o])


def whole_numbers(o):
    made = [int(o), int(o), +o, o + 0, o * 1, o.__int__(), o.__index__(), o.conjugate(), o.real, o.numerator]
    return made, round(o), abs(o), o | 0, o.__trunc__(), o // 1, max(o, 1)


def real_numbers(o):
    return float(o), float(o), +o, abs(o), o * 1, o.conjugate(), o.real, o.__float__(), round(o, 3), max(o, 1.0)


def tuples(o):
    return tuple(o), tuple(o), o[:], o + (), () + o, o * 1, (*o,), o.__add__(()), o[0:9], max(o, (1,))  # noqa: RUF005


def frozensets(o):
    return frozenset(o), o.copy(), o | set(), o & o, o - set(), o.union(), o.difference()


def lists(o):
    return list(o), o[:], o.copy(), o + [], o * 1, o.__iadd__([]), o.__imul__(1), sorted(o)  # noqa: RUF005


def tables(o):
    return dict(o), o.copy(), o | {}, o.__ior__({}), {**o}


VALUES = {
    texts: (Text("abc"), Text("a b\tc"), "abc"),
    data: (Data(b"abc"), b"abc"),
    whole_numbers: (Whole(5000), True, 5000),
    real_numbers: (Real(1.5), 1.5),
    tuples: (Row((1, 2)), Row(), (1, 2)),
    frozensets: (Group([1]), frozenset([1])),
    lists: (Items([1]),),
    tables: (Table(a=1),),
}


def outside(o, program):
    return program(o)


def made_here(o, program):
    return program(type(o)(o))


def shown(result, given):
    """Returns the class and text of each object, and whether it is an object of the user that was given."""
    found = [given]
    todo = [result]
    while todo:
        value = todo.pop(0)
        if type(value) in (list, tuple):
            todo += value
        found.append(value)
    is_own = type(given).__module__ == __name__
    return [(is_own and value is given, type(value), repr(value)) for value in found]


@pytest.mark.parametrize("frame", [outside, made_here])
@pytest.mark.parametrize("program", VALUES, ids=lambda program: program.__name__)
def test_classes_and_identities(program, frame):
    compiled = minidynamo.compile(frame, backend="eager", recompile_limit=40)
    for value in VALUES[program]:
        for _ in range(2):
            expected, actual = shown(frame(value, program), value), shown(compiled(value, program), value)
            assert [pair for pair in zip(expected, actual, strict=True) if pair[0] != pair[1]] == []


class Shifted(int):
    def __new__(cls, number, shift=0):
        return super().__new__(cls, number + shift)

    def __add__(self, other):
        return Shifted(int(self) + other, 100)


def of_a_number(x, n):
    made = Whole(n), Real(n), Shifted(n, 2) + 1, Real(n * 1.5), Whole(Whole(n) + 1)
    return x + n, [(type(each), repr(each)) for each in made], made, int(Whole(n)), float(Real(n)), Shifted(n) == n


def test_values_that_change_from_call_to_call():
    compiled = minidynamo.compile(of_a_number, backend="eager")
    x = torch.ones(2)
    for n in (3, 7, 9, 3):
        _, *expected = of_a_number(x, n)
        _, *found = compiled(x, n)
        assert found == expected and [*map(type, found[1])] == [*map(type, expected[1])]
