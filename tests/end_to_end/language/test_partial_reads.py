"""A program's partial reads of a value are guarded, and nothing else: a fact of a tensor, an item, a range, a module.

Each program is called with the first value; then with values that differ in an unread part, without a compile, or in a
read part, with a compile. Values that are only moved are in test_lazy_values.py.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import functools
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

    def scaled(self, y):
        return y * self.x


class Text(tuple):
    def first(self):
        return self[0]


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


def is_missing(value):
    return value is None


def loops(x, numbers):
    for number in numbers:
        x = x + number
    return x


def unpacked(tensor):
    height, _ = tensor.shape
    return height


def unpacked_pair(pair):
    first, _ = pair
    return first


def chosen(condition):
    return lambda x, v: x * 2 if condition(v) else x


def helper(x, used, unused=None):
    return x * used


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def first_of(x, *rest):
    return x * rest[0]


def above_two(x, items):
    for item in items:
        if item > 2:
            return x * item
    return x


def passed_on(x, table):
    made = [table["note"]]
    made.append(table["rest"])
    return x * 2, made, (table["count"],)


def by(read):
    return lambda x, v: x * read(v)


def a(value):
    return Space(v=value)


# Programs, the first argument, arguments that differ in unread parts, and arguments that differ in read parts.
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
    "torch.is_floating_point": (chosen(torch.is_floating_point), F, [WIDE, D, CUBE, GRAD], [LONG]),
    "is_complex()": (chosen(lambda t: t.is_complex()), F, [WIDE, D, LONG, GRAD], [F.cfloat()]),
    "torch.is_complex": (chosen(torch.is_complex), F, [WIDE, D, LONG, GRAD], [F.cfloat()]),
    "is_signed()": (chosen(lambda t: t.is_signed()), F, [WIDE, D, LONG, GRAD], [F.bool()]),
    "torch.is_signed": (chosen(torch.is_signed), F, [WIDE, D, LONG], [F.bool()]),
    "a dtype's kind": (chosen(lambda t: t.dtype.is_floating_point), F, [WIDE, D, GRAD], [LONG]),
    "a dtype's size": (by(lambda t: t.dtype.itemsize), F, [WIDE, F.int(), GRAD], [D]),
    "itemsize": (by(lambda t: t.itemsize), F, [WIDE, F.int(), GRAD], [D, F.half()]),
    "nbytes": (by(lambda t: t.nbytes), F, [TURNED, torch.ones(6), torch.ones(3).double()], [WIDE]),
    "nelement()": (by(lambda t: t.nelement()), F, [D, GRAD, torch.ones(6)], [WIDE]),
    "torch.numel": (by(torch.numel), F, [D, GRAD, torch.ones(6)], [WIDE]),
    "all strides": (by(lambda t: t.stride()[0]), F, [D, GRAD, TALL], [TURNED]),
    "is_conj": (chosen(lambda t: t.is_conj()), F, [WIDE, D, LONG, F.cfloat()], [F.cfloat().conj()]),
    "is_neg": (chosen(lambda t: t.is_neg()), F, [WIDE, D, LONG], [F.cfloat().conj().imag]),
    "ndimension()": (by(lambda t: t.ndimension()), F, [WIDE, D, GRAD, TURNED], [CUBE]),
    "is_sparse": (chosen(lambda t: t.is_sparse), F, [WIDE, D, LONG], [F.to_sparse()]),
    "the first one's size": (by(lambda xs: xs[0].shape[0]), [F], [[WIDE], [D, FLAT], [F] * 3, [GRAD]], [[TALL]]),
    "the last one's size": (by(lambda xs: xs[-1].shape[1]), [F, F], [[F], [WIDE, D], [F] * 3], [[F, WIDE]]),
    "a dtype in a list": (chosen(lambda xs: xs[1].dtype is torch.float32), [F, F], [[F] * 3, [D, WIDE]], [[F, D]]),
    "None among tensors": (chosen(lambda xs: xs[0] is None), [F, F], [[D], [WIDE, F, F]], [[None, F]]),
    "number of tensors": (by(len), [F, F], [[D, WIDE]], [[F]]),
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
ITEMS = {
    "an item of a tuple": (by(lambda t: t[0]), (2, 1), [(2, "a", F)], [(3, 1)]),
    "the last item of a tuple": (by(lambda t: t[-1]), (1, 2), [(F, "a", 2)], [(2, 1)]),
    "an inner tuple": (by(lambda t: t[0][1]), ((1, 2), 3), [((5, 2, 7),)], [((1, 3), 3)]),
    "a field that a method reads": (lambda x, p: p.scaled(x), Record(2), [Record(2, "m")], [Record(3)]),
    "an item of a size": (by(lambda s: s[0]), torch.Size([2, 3]), [torch.Size([2])], [torch.Size([3])]),
    "an item of a subclass": (by(lambda t: t.first()), Text((2, 3)), [Text((2,))], [Text((3, 3))]),
    "unpacking": (by(unpacked_pair), (2, 3), [(2, "a")], [(3, 3)]),
    "unpacking an attribute": (by(lambda s: unpacked_pair(s.v)), a((2, 3)), [a((2, F))], [a((3, 3))]),
    "a slice from the beginning": (by(lambda t: t[:2][0]), (2, 3, 4), [(2, 4)], [(3, 4)]),
    "a slice to the end": (by(lambda t: t[-2:][1]), (2, 3, 4), [(3, 4)], [(4, 3)]),
    "the rest of a loop": (above_two, (1, 3, 4), [(2, 3, "a")], [(3, 3, 4)]),
    "arguments with a star": (lambda x, v: first_of(x, *v), (2, 3), [(2, "a"), (2, F)], [(3, 3)]),
    "an argument of a callee": (lambda x, v: helper(x, *v), (2, 1), [(2, 5)], [(3, 1)]),
    "an argument of a decorated function": (lambda x, v: logged(helper)(x, *v), (2, "m"), [(2, "n")], [(3, "m")]),
    "an argument of a partial": (
        lambda x, p: p(x),
        functools.partial(helper, used=2, unused=1),
        [functools.partial(helper, used=2, unused=5)],
        [functools.partial(helper, used=3, unused=1)],
    ),
    "values that are moved": (
        passed_on,
        {"note": 0.5, "rest": 1, "count": 2},
        [{"count": 5, "note": 1.5, "rest": 7}, {"count": 1, "note": F, "rest": 7}],
        [],
    ),
    "an int in a range": (lambda x, n: x * 2 if n > 3 else x, 5, [7], [3]),
    "a float in a range": (lambda x, n: x * 2 if n > 0.5 else x, 5.0, [0.7], [float("nan")]),
    "truth of an int": (lambda x, n: x * 2 if n else x, 5, [-7], [0]),
    "an unequal text": (lambda x, s: x * 2 if s == "a{b}" else x, "c", ["}d"], ["a{b}"]),
    "truth of a text": (lambda x, s: x * 2 if s else x, "c", ["d"], [""]),
    "one of some texts": (lambda x, s: x * 2 if s in ("a", "b") else x, "a", ["b"], ["c"]),
    "truth of a list": (lambda x, s: x * 2 if s else x, [1], [[1, 2]], [[]]),
    "truth of a dict": (lambda x, s: x * 2 if not s else x, {"a": 1}, [{"b": 1, "c": 2}], [{}]),
    "a length in a range": (lambda x, s: x * 2 if len(s) > 2 else x, (1,), [("a", 2)], [(1, 2, 3)]),
    "the first operands of a condition": (
        lambda x, s: x * 2 if s.a is not None and (s.b or s.c) else x,
        Space(a=1, b=2, c=3),
        [Space(a=4, b=5, c="t")],
        [Space(a=None, b=1, c=1)],
    ),
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
    "a number among others": (by(lambda xs: xs[1]), [1, 2, "a"], [[F, 2], [None, 2, 3]], [[1, 3, "a"]]),
    "a key that is a tuple": (by(lambda d: d[1, 2]), {(1, 2): 2}, [{(1, 2): 2, "a": 1}], [{(1, 2): 3}]),
    "none in an attribute": (chosen(lambda s: s.v is None), a(F), [a(D), a(1), a("t"), a(len), a([1])], [a(None)]),
    "not none in a branch": (lambda x, s: x if s.v is None else x * 2, a(1), [a(D), a(len), a([1])], [a(None)]),
    "none in a dict": (chosen(lambda d: d["a"] is None), {"a": 1}, [{"a": F}, {"a": len, "b": 1}], [{"a": None}]),
    "none in a tuple": (chosen(lambda t: t[1] is None), (1, 2), [(F, len), ("a", "b", 3)], [(1, None)]),
    "none in a field": (chosen(lambda c: c.extra is None), Config(), [Config(1, F), Config(2, len)], [Config(2, None)]),
    "none in a slot": (chosen(lambda s: s.a is None), Slots(2, 3), [Slots(F, 1), Slots(len, 1)], [Slots(None, 3)]),
    "none through a function": (chosen(lambda s: is_missing(s.v)), a(1), [a(F), a(len)], [a(None)]),
    "truth of a function": (chosen(lambda s: bool(s.v) if s.v is None else not s.v), a(len), [a(abs)], [a(None)]),
    "an attribute that is there": (chosen(lambda s: hasattr(s, "v")), a(1), [a(F), a(len), a(None)], [Space()]),
    "class of an attribute": (chosen(lambda s: isinstance(s.v, int)), a(1), [a(2)], [a("t"), a(F)]),
    "a default of getattr": (by(lambda s: getattr(s, "w", 3)), a(1), [a(F), a(None)], [Space(w=2)]),
    "an attribute of an attribute": (by(lambda s: s.v.a), a(Slots(2, 3)), [a(Slots(2, F))], [a(Slots(3, 3))]),
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
CASES = TENSORS | RANGES | ITEMS | VALUES


def same(actual, expected):
    """True if two results are alike: computed tensors in value, moved values in identity."""
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
        if not compiled.stats.graph_breaks:
            with no_recompile():
                check(compiled, program, (X, first))


SIZES = {
    "a size": (by(lambda t: t.shape[0]), 1),
    "len": (by(len), 1),
    "size(-1)": (by(lambda t: t.size(-1)), 1),
    "numel()": (by(lambda t: t.numel()), 1),
    "nbytes": (by(lambda t: t.nbytes), 2),
    "stride(0)": (by(lambda t: t.stride(0)), 1),
    "numel of the shape": (by(lambda t: t.shape.numel()), 1),
    "is_contiguous()": (by(lambda t: 1 + t.is_contiguous()), 1),
    "a size in a list": (by(lambda t: [t][0].shape[1]), 1),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_vary_are_all_that_is_guarded(name):
    program, versions = SIZES[name]
    compiled = minidynamo.compile(program, backend="eager", dynamic=True)
    others = [torch.ones(9, 3).double(), torch.ones(7, 8, requires_grad=True), torch.ones(5, 6).long()]
    for value in (torch.ones(5, 6), torch.ones(6, 7), *others):
        check(compiled, program, (X, value))
    assert compiled.stats.compiles <= versions and "tensor `v`" not in str(compiled.guards())
    check(compiled, program, (X, torch.ones(1, 1)))
    check(compiled, program, (X, torch.ones(0, 3)))


def test_a_size_that_is_not_there_is_noticed():
    compiled = minidynamo.compile(by(lambda t: t.shape[1]), backend="eager", dynamic=True)
    assert torch.equal(compiled(X, WIDE), X * 5)
    with pytest.raises(IndexError):
        compiled(X, FLAT)


def first_then_all(x, xs):
    count = xs[0].shape[0]
    return x * count + xs[1].sum() + xs[0].sum()


def first_then_pop(x, xs):
    count = xs[-1].shape[0]
    return x * count + xs.pop().sum()


@pytest.mark.parametrize("program", [first_then_all, first_then_pop])
def test_a_list_whose_tensors_are_used_comes_as_one(program):
    compiled = minidynamo.compile(program, backend="eager", dynamic=False)
    for lists in ([F, WIDE], [F, F], [F, WIDE, D]):
        mine, others = [*lists], [*lists]
        assert torch.equal(compiled(X, mine), program(X, others)) and len(mine) == len(others)
    assert compiled.stats.graph_breaks == 0
    names = [node.target for node in compiled.graphs[0].graph.nodes if node.op == "placeholder"]
    assert sorted(names) == ["x", "xs"]


def test_a_tuple_itself_stays_the_same_object():
    program = lambda x, t, u: (x + (1 if t is u else 2), t, [t], {"t": t}, t is None)
    compiled = minidynamo.compile(program, backend="eager")
    t, u = (1, [2]), (1, [2])
    for arguments in ((X, t, t), (X, t, u), (X, u, u)):
        out, expected = compiled(*arguments), program(*arguments)
        assert torch.equal(out[0], expected[0]) and out[1] is out[2][0] is out[3]["t"] is arguments[1]


def test_an_unread_item_crosses_a_break():
    def program(x, t):
        y = x * t[0]
        minidynamo.graph_break()
        return y * t[1], t

    compiled = minidynamo.compile(program, backend="eager")
    for t in ((2, 3), (2, 4), (2, 4, 5)):
        out, same = compiled(X, t)
        assert torch.equal(out, X * 2 * t[1]) and same is t


def test_what_was_compared_and_then_used_is_guarded_once():
    compiled = minidynamo.compile(lambda x, n: x * n if n > 0 else x, backend="eager", dynamic=False)
    compiled(X, 3)
    assert "relation" not in str(compiled.guards()) and "value of `n`: 3" in str(compiled.guards())


def test_defaults_that_are_added_in_front_move_no_other():
    def scaled(x, a, b=2, c=3):
        return x * b * c

    compiled = minidynamo.compile(lambda x: scaled(x, 1), backend="eager")
    for defaults in ((2, 3), (7, 2, 3), (5, 3)):
        scaled.__defaults__ = defaults
        assert torch.equal(compiled(X), scaled(X, 1))
    assert compiled.stats.compiles == 2
