import dataclasses
from dataclasses import field

import pytest

from minidynamo.core.records import record


def classes(make):
    """Returns classes of every kind in the package, made with the decorator `make`."""

    @make
    class Empty:
        pass

    @make
    class Plain:
        a: int
        b: list = field(default_factory=list)

    @make(frozen=True)
    class Frozen:
        a: int
        b: object = field(default=None, compare=False)
        c: str = field(default="", repr=False)

    @make(frozen=True)
    class Single:
        a: object = ()

    @make(frozen=True, kw_only=True)
    class Derived(Frozen):
        d: int = 0

    @make(eq=False)
    class Identity:
        a: int = 0

        def __repr__(self):
            return f"<{self.a}>"

    @make(frozen=True)
    class OwnHash:
        a: int = 0

        def __hash__(self):
            return 7

    @make(frozen=True)
    class OwnEquality:
        a: int = 0

        def __eq__(self, other):
            return True

    return Empty, Plain, Frozen, Single, Derived, Identity, OwnHash, OwnEquality


NUMBERS = [(), (1,), (1, [2]), (2, 3, "c"), (2, 4, "c"), (1,)]
PAIRS = list(zip(classes(record), classes(dataclasses.dataclass)))


def instances(cls):
    """Returns an instance for each arguments that the class takes, and whether these are valid."""
    found = []
    for numbers in NUMBERS:
        try:
            found.append(cls(*numbers))
        except TypeError:
            found.append(None)
    return found


def hash_or_error(instance):
    try:
        return hash(instance)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("own, standard", PAIRS, ids=[cls.__name__ for cls, _ in PAIRS])
def test_a_record_is_a_dataclass(own, standard):
    pairs = list(zip(instances(own), instances(standard)))
    assert [a is None for a, _ in pairs] == [b is None for _, b in pairs]
    pairs = [(a, b) for a, b in pairs if a is not None]
    assert pairs
    for a, b in pairs:
        assert repr(a).rpartition(".")[2] == repr(b).rpartition(".")[2]
        assert dataclasses.is_dataclass(a) and dataclasses.asdict(a) == dataclasses.asdict(b)
        assert a != 3 or b == 3
        if type(b).__hash__ is not object.__hash__:
            assert hash_or_error(a) == hash_or_error(b)
        for c, d in pairs:
            assert (a == c) is (b == d)
    assert own.__match_args__ == standard.__match_args__
    assert [f.name for f in dataclasses.fields(own)] == [f.name for f in dataclasses.fields(standard)]


def test_replacing_a_field_makes_an_equal_record():
    _, plain, frozen, *_ = classes(record)
    assert dataclasses.replace(frozen(1, 2), a=3) == frozen(3, 5)
    assert dataclasses.replace(plain(1), b=[1]) != plain(1)


def test_records_of_different_classes_differ():
    *_, own_hash, _ = classes(record)
    assert own_hash(1) != classes(record)[0]()


def test_the_text_of_a_record_that_contains_itself_ends():
    plain = classes(record)[1](1)
    plain.b.append(plain)
    assert "..." in repr(plain)
