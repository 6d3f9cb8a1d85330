"""Of a value that a program looks at, only what it looks at is guarded: one facet of a tensor, a range, a module.

Each program is called with the first arguments; then with others that differ in what it does not read, which must not
compile, or in what it does read, which must.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
from types import SimpleNamespace as Space
from typing import Any, NamedTuple

import pytest
import torch

import minidynamo
from minidynamo.testing import no_recompile

X = torch.arange(4.0)
F, D, WIDE, GRAD = torch.ones(2, 3), torch.ones(2, 3).double(), torch.ones(2, 5), torch.ones(2, 3, requires_grad=True)
FLAT, CUBE, LONG, TALL = torch.ones(2), torch.ones(2, 3, 4), torch.ones(2, 3).long(), torch.ones(7, 3)
TURNED, META = torch.ones(3, 2).t(), torch.ones(2, 3, device="meta")
Pair = collections.namedtuple("Pair", "first second")


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Config:
    scale: Any = 2
    extra: Any = "n"


class Record(NamedTuple):
    x: Any
    note: Any = None


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


class Net(torch.nn.Module):
    def __init__(self, first=4, second=4, width=4, act=torch.relu, mask=None):
        super().__init__()
        self.first, self.second, self.act = torch.nn.Linear(first, width), torch.nn.Linear(second, 4), act
        self.register_buffer("mask", mask)


def net(**changes):
    torch.manual_seed(0)
    return Net(**changes)


def ignores(x, _):
    return x * 2


def keeps(x, value):
    return x * 2, [value], {"v": value}


def through(x, space):
    return ignores(x, space.v)


def handed(x, space):
    return x * 2, space.v


def stores(x, space, other):
    space.kept = other.v
    return x * 2


def loops(x, numbers):
    for number in numbers:
        x = x + number
    return x


def unpacked(tensor):
    height, _ = tensor.shape
    return height


def chosen(condition):
    return lambda x, v: x * 2 if condition(v) else x


def by(read):
    return lambda x, v: x * read(v)


def a(value):
    return Space(v=value)


# Programs, the first argument, those that differ in what is not read, and those that differ in what is.
TENSORS = {
    "dtype": (chosen(lambda t: t.dtype == torch.float32), F, [WIDE, CUBE, GRAD, TURNED, META], [D]),
    "device": (chosen(lambda t: t.device.type == "cpu"), F, [WIDE, D, CUBE, GRAD], [META]),
    "is_meta": (chosen(lambda t: t.is_meta), F, [WIDE, D, CUBE, GRAD], [META]),
    "is_cuda": (chosen(lambda t: t.is_cuda), F, [WIDE, D, CUBE, GRAD], []),
    "requires_grad": (chosen(lambda t: t.requires_grad), F, [WIDE, D, CUBE], [GRAD]),
    "layout": (chosen(lambda t: t.layout is torch.strided), F, [WIDE, D, CUBE, GRAD], [F.to_sparse()]),
    "ndim": (by(lambda t: t.ndim), F, [WIDE, D, GRAD, TURNED], [CUBE]),
    "dim()": (by(lambda t: t.dim()), F, [WIDE, D, GRAD, TURNED], [CUBE]),
    "one size": (by(lambda t: t.shape[0]), F, [WIDE, D, CUBE, GRAD, FLAT], [TALL]),
    "the last size": (by(lambda t: t.shape[-1]), F, [TALL, D, GRAD], [WIDE]),
    "size(0)": (by(lambda t: t.size(0)), F, [WIDE, D, CUBE, GRAD], [TALL]),
    "size(-1)": (by(lambda t: t.size(-1)), F, [TALL, D, GRAD], [WIDE]),
    "size()": (by(lambda t: t.size()[1]), F, [D, TALL, GRAD], [WIDE]),
    "whole shape": (chosen(lambda t: t.shape == (2, 3)), F, [D, GRAD, TURNED, META], [WIDE, CUBE]),
    "unpacked shape": (by(unpacked), F, [D, GRAD, WIDE], [TALL]),
    "len": (by(len), F, [WIDE, D, CUBE, GRAD], [TALL]),
    "len of shape": (by(lambda t: len(t.shape)), F, [WIDE, D, TALL], [CUBE]),
    "a size that is compared": (chosen(lambda t: t.shape[0] > 3), F, [torch.ones(3), WIDE, D], [TALL]),
    "numel": (by(lambda t: t.numel()), F, [D, GRAD, TURNED], [WIDE]),
    "is_floating_point()": (chosen(lambda t: t.is_floating_point()), F, [WIDE, D, CUBE, GRAD], [LONG]),
    "torch.is_floating_point": (chosen(torch.is_floating_point), F, [WIDE, CUBE, GRAD], [LONG]),
    "torch.is_tensor": (chosen(torch.is_tensor), F, [WIDE, D, META], [1]),
    "element_size": (by(lambda t: t.element_size()), F, [WIDE, CUBE, GRAD], [D]),
    "is None": (chosen(lambda t: t is None), F, [WIDE, D, CUBE, GRAD], [None]),
    "isinstance": (chosen(lambda t: isinstance(t, torch.Tensor)), F, [WIDE, D, CUBE, GRAD], [1]),
    "type": (chosen(lambda t: type(t) is torch.Tensor), F, [WIDE, D, CUBE, GRAD], [torch.nn.Parameter(F)]),
    "hasattr": (chosen(lambda t: hasattr(t, "shape")), F, [WIDE, D, GRAD], [1]),
    "callable": (chosen(callable), F, [WIDE, D, GRAD], [len]),
    "stride": (by(lambda t: t.stride(0)), F, [D, GRAD], [TURNED]),
    "is_contiguous": (chosen(lambda t: t.is_contiguous()), F, [D, GRAD], [TURNED]),
    "an attribute's dtype": (chosen(lambda s: s.v.dtype is torch.float32), a(F), [a(WIDE), a(GRAD)], [a(D)]),
    "an attribute's size": (by(lambda s: s.v.shape[1]), a(F), [a(D), a(TALL)], [a(WIDE)]),
    "an element's size": (by(lambda xs: xs[0].shape[0]), [F, 1], [[WIDE], [D, 1], [CUBE]], [[TALL, 1]]),
    "a value's size": (by(lambda d: d["v"].shape[0]), {"v": F}, [{"v": WIDE, "w": 1}, {"v": D}], [{"v": TALL}]),
    "a field's size": (by(lambda p: p.first.shape[0]), Pair(F, 1), [Pair(WIDE, 2), Pair(D, 1)], [Pair(TALL, 1)]),
    "is_leaf": (chosen(lambda t: t.is_leaf), F, [WIDE, D, CUBE], []),
    "a buffer's dtype": (
        by(lambda m: 1 if m.mask.dtype is torch.float32 else 2),
        net(mask=F),
        [net(mask=WIDE), net(mask=F, first=2)],
        [net(mask=D)],
    ),
}
UNTOUCHED = {
    "ignored by a callee": (ignores, 1, ["a", None, F, [1], Config()], []),
    "packed and returned": (keeps, 1, ["a", None, F, [1], Config()], []),
    "a tensor returned": (lambda x, t: (x * 2, t), F, [WIDE, D, CUBE, GRAD, 1], []),
}
RANGES = {
    "start of a range": (by(lambda r: r.start), range(2, 5), [range(2, 7), range(2, 9, 3)], [range(3, 5)]),
    "stop of a range": (by(lambda r: r.stop), range(2, 5), [range(1, 5), range(0, 5, 2)], [range(2, 6)]),
    "step of a range": (by(lambda r: r.step), range(2, 5), [range(1, 5), range(9)], [range(2, 5, 2)]),
    "length of a range": (by(len), range(2, 5), [range(3), range(0, 6, 2)], [range(2, 6)]),
    "first of a range": (by(lambda r: r[0]), range(2, 5), [range(2, 7), range(2, 9, 3)], [range(3, 5)]),
    "truth of a range": (chosen(bool), range(2, 5), [range(3), range(9)], [range(0)]),
    "loop over a range": (loops, range(3), [], [range(4), range(0, 6, 2)]),
    "type of a range": (chosen(lambda r: isinstance(r, range)), range(2, 5), [range(3)], [1]),
    "start of a slice": (by(lambda s: s.start), slice(2, 5), [slice(2, 7), slice(2, None, "a")], [slice(3, 5)]),
    "stop of a slice": (by(lambda s: s.stop), slice(2, 5), [slice(1, 5), slice(None, 5, 2)], [slice(2, 6)]),
    "step of a slice": (chosen(lambda s: s.step is None), slice(2, 5), [slice(1, 7)], [slice(2, 5, 2)]),
    "a step that is None": (
        lambda x, s: x * 2 if s.step is None else x,
        slice(2, 5),
        [slice(1, 7)],
        [slice(2, 5, 2), slice(2, 5, "a")],
    ),
    "a step of a class": (chosen(lambda s: isinstance(s.step, int)), slice(2, 5, 2), [slice(1, 7, 3)], [slice(2, 5)]),
    "type of a slice": (chosen(lambda s: isinstance(s, slice)), slice(2, 5), [slice(3)], [1]),
    "an attribute that is a range": (by(lambda s: s.v.start), a(range(2, 5)), [a(range(2, 9))], [a(range(3, 5))]),
}
VALUES = {
    "one key": (by(lambda d: d["a"]), {"a": 2, "b": 3}, [{"a": 2}, {"c": 1, "a": 2, "b": 4}], [{"a": 3, "b": 3}]),
    "order of keys": (by(lambda d: next(iter(d.values()))), {"a": 2, "b": 3}, [], [{"b": 3, "a": 2}]),
    "get of a key": (by(lambda d: d.get("a", 5)), {"b": 3}, [{}, {"c": 1}], [{"a": 3, "b": 3}]),
    "a key that is there": (chosen(lambda d: "a" in d), {"a": 1}, [{"a": "t", "b": 2}], [{"b": 1}]),
    "number of keys": (by(len), {"a": 1}, [{"b": "t"}], [{"a": 1, "b": 2}]),
    "one element": (by(lambda xs: xs[0]), [2, 3], [[2], [2, "a", 5]], [[3, 3]]),
    "one element of a deque": (
        by(lambda q: q[0]),
        collections.deque([2, 3]),
        [collections.deque([2])],
        [collections.deque([3])],
    ),
    "length of a list": (by(len), [2, 3], [["a", F]], [[2]]),
    "one attribute": (by(lambda s: s.a), Space(a=2, b=3), [Space(a=2), Space(b="t", a=2)], [Space(a=3, b=3)]),
    "a slot": (by(lambda s: s.a), Slots(2, 3), [Slots(2, "t")], [Slots(3, 3)]),
    "a field of a dataclass": (by(lambda c: c.scale), Config(), [Config(2, F)], [Config(3)]),
    "a member": (chosen(lambda c: c is Color.RED), Color.RED, [], [Color.BLUE]),
    "a member's class": (chosen(lambda c: isinstance(c, Color)), Color.RED, [Color.BLUE], [1]),
    "a member's value": (by(lambda c: c.value), Color.RED, [], [Color.BLUE]),
    "one element of a set": (chosen(lambda s: 1 in s), {1, 2}, [{1}, {1, 5, 7}], [{2}]),
    "one element of a frozenset": (chosen(lambda s: 1 in s), frozenset({1, 2}), [frozenset({1})], [frozenset({2})]),
    "number of elements": (by(len), {1, 2}, [{3, 4}], [{1}]),
    "length of a text": (by(len), "abc", ["xyz"], ["ab"]),
    "start of a text": (chosen(lambda s: s.startswith("a")), "abc", ["axy", "a"], ["xab"]),
    "end of a text": (chosen(lambda s: s.endswith("c")), "abc", ["xyc", "c"], ["xab"]),
    "part of a text": (chosen(lambda s: "b" in s), "abc", ["xb", "b"], ["xa"]),
    "a character": (chosen(lambda s: s[0] == "a"), "abc", ["axy", "a"], ["xab"]),
    "a text that is compared": (chosen(lambda s: s == "sum"), "abc", ["axy", "a"], ["sum"]),
    "length of bytes": (by(len), b"abc", [b"xyz"], [b"ab"]),
    "a number's sign": (chosen(lambda n: n > 0), 3, [4, 5], [-1]),
    "a float's class": (chosen(lambda n: isinstance(n, float)), 0.5, [1.5, float("nan")], [1]),
    "real of a complex": (by(lambda c: c.real), 1 + 2j, [1 + 3j], [2 + 2j]),
    "type of a complex": (chosen(lambda c: isinstance(c, complex)), 1 + 2j, [1j], [1]),
    "a device's type": (
        chosen(lambda d: d.type == "cuda"),
        torch.device("cuda", 0),
        [torch.device("cuda", 1)],
        [torch.device("cpu")],
    ),
    "a year": (
        by(lambda d: d.year),
        datetime.date(2020, 1, 1),
        [datetime.date(2020, 5, 2)],
        [datetime.date(2021, 1, 1)],
    ),
    "a submodule": (
        lambda x, m: m.first(x),
        net(),
        [net(second=2), net(act=torch.tanh), net(mask=F)],
        [net(width=6)],
    ),
    "a size of a parameter": (by(lambda m: m.first.weight.shape[0]), net(), [net(first=2)], []),
    "a module's class": (chosen(lambda m: isinstance(m, Net)), net(), [net(first=2)], [torch.nn.Linear(2, 2)]),
    "training": (chosen(lambda m: m.training), net(), [net(first=2)], [net().eval()]),
    "in_features": (by(lambda m: m.first.in_features), net(), [net(second=2)], [net(first=2)]),
    "a field of a namedtuple": (by(lambda r: r.x), Record(2), [Record(2, F)], [Record(3)]),
}
CASES = TENSORS | UNTOUCHED | RANGES | VALUES


def same(actual, expected):
    """Whether two results are alike: computed tensors in value, what is handed on in identity."""
    if type(expected) in (tuple, list):
        return len(actual) == len(expected) and all(map(same, actual, expected))
    if type(expected) is dict:
        return actual.keys() == expected.keys() and all(same(actual[key], expected[key]) for key in expected)
    is_equal = isinstance(expected, torch.Tensor) and torch.equal(actual, expected)
    return actual is expected or (is_equal and actual.dtype is expected.dtype)


def check(compiled, program, arguments):
    assert same(compiled(*arguments), program(*arguments))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2]])
def test_nothing_unread_is_guarded(name):
    program, first, alike, _ = CASES[name]
    compiled = minidynamo.compile(program, backend="eager")
    check(compiled, program, (X, first))
    assert compiled.stats.compiles == 1
    for value in alike:
        with no_recompile():
            check(compiled, program, (X, value))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[3]])
def test_what_is_read_is_guarded(name):
    program, first, _, others = CASES[name]
    for other in others:
        compiled = minidynamo.compile(program, backend="eager")
        compiled(X, first)
        before = compiled.stats.compiles
        check(compiled, program, (X, other))
        assert compiled.stats.compiles > before
