"""Attributes that a program adds to enum members, functions, tuples and classes after the compile."""

from __future__ import annotations

import collections
import enum
import functools
import types

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import rows_of


class Mode(enum.Enum):
    FAST = 1


class Level(enum.IntEnum):
    LOW = 1


class Options(enum.Flag):
    A = 1
    B = 2


class Answering(enum.Enum):
    ONE = 1

    def __getattr__(self, name):
        if name == "tag":
            return 7
        raise AttributeError(name)


class Point(collections.namedtuple("Point", "x y")):
    pass


def plain(value):
    return value


@functools.lru_cache
def cached(value):
    return value


class Holder:
    @functools.cache  # noqa: B019
    def method(self):
        return 1


OWNERS = {
    "member": Mode.FAST,
    "number": Level.LOW,
    "flag": Options.A | Options.B,
    "with __getattr__": Answering.ONE,
    "function": plain,
    "lru_cache": cached,
    "cached method": vars(Holder)["method"],
    "partial": functools.partial(plain, 1),
    "namedtuple": Point(1, 2),
    "class": Holder,
    "module": types.ModuleType("mine"),
    "function of torch": torch.nn.functional.silu,
    "class of torch": torch.nn.Linear,
}


def counted(x, owner):
    owner.tag = getattr(owner, "tag", 0) + 1
    return x * owner.tag


class Cases:
    def read(x, owner):
        return x * getattr(owner, "tag", 1)

    def asked(x, owner):
        return x * 2 if hasattr(owner, "tag") else x

    def tried(x, owner):
        try:
            return x * owner.tag
        except AttributeError:
            return x - 1

    def counted_twice(x, owner):
        owner.tag = getattr(owner, "tag", 0) + 1
        print(end="")
        owner.tag += 1
        return x * owner.tag


def deleted(x, owner):
    if "tag" in vars(owner):
        del owner.tag
        return x
    return x * 3


def delete(owner):
    if "tag" in vars(owner):
        del owner.tag


def history(program, owner):
    """Returns the results of calls, and the attribute after each call, while the attribute is added, changed and
    deleted."""
    delete(owner)
    seen = []

    def call():
        seen.append((program(torch.ones(1), owner).item(), vars(owner).get("tag")))

    call(), call()
    for value in (5, 6):
        owner.tag = value
        call(), call()
    delete(owner)
    call()
    delete(owner)
    return seen


@pytest.mark.parametrize("program", [*rows_of(Cases), counted, deleted])
@pytest.mark.parametrize("owner", OWNERS)
def test_an_attribute_that_comes_and_goes_is_noticed(owner, program):
    if program is deleted and owner == "class of torch":
        pytest.skip("the dictionaries of torch's classes are trusted")
    compiled = minidynamo.compile(program, backend="eager")
    assert history(compiled, OWNERS[owner]) == history(program, OWNERS[owner])


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_with_other_backends(backend):
    compiled = minidynamo.compile(counted, backend=backend)
    assert history(compiled, Mode.FAST) == history(counted, Mode.FAST)


def test_the_dictionary_of_a_member_is_read_and_written():
    def program(x, member):
        x = x * vars(member).get("tag", 1)
        member.__dict__["tag"] = x.shape[0] + 5
        return x * member.tag

    compiled = minidynamo.compile(program, backend="eager")
    assert history(compiled, Mode.FAST) == history(program, Mode.FAST)


def test_an_attribute_of_a_member_hides_a_method():
    class Kind(enum.Enum):
        ONE = 1

        def factor(self):
            return 2

    compiled = minidynamo.compile(lambda x, kind: x * kind.factor(), backend="eager")
    assert compiled(torch.ones(1), Kind.ONE).item() == 2
    Kind.ONE.factor = lambda: 3
    assert compiled(torch.ones(1), Kind.ONE).item() == 3


def test_members_without_new_attributes_are_not_compiled_again():
    compiled = minidynamo.compile(lambda x, mode: x * getattr(mode, "tag", 1) + mode.value, backend="eager")
    compiled(torch.ones(1), Mode.FAST)
    with minidynamo.testing.no_recompile():
        compiled(torch.ones(1), Mode.FAST)
