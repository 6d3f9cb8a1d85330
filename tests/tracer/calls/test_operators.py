# The programs keep the style of users, against the advice of linters.
# ruff: noqa: RUF005, SIM300

import collections
import itertools
import operator

import pytest
import torch

import minidynamo
from minidynamo.tracer.records.operator_table import BINARY, IN_PLACE, UNARY
from minidynamo.tracer.records.registry import FUNCTIONS
from tests.end_to_end.programs import Programs, two_vectors
from tests.pairs import pairs

programs = Programs()
test_same_as_eager = programs.test()


class Left:
    def __init__(self, log):
        self.log = log

    def __add__(self, other):
        self.log.append("Left.__add__")
        return NotImplemented

    def __lt__(self, other):
        return "lt"

    def __eq__(self, other):
        return other == 1

    def __contains__(self, item):
        return item == 2

    def __len__(self):
        return 0


class Right(Left):
    def __radd__(self, other):
        self.log.append("Right.__radd__")
        return "radd"

    def __iadd__(self, other):
        self.log.append("Right.__iadd__")
        return self

    def __neg__(self):
        return "neg"

    def __getitem__(self, key):
        return key

    def __setitem__(self, key, value):
        self.log.append((key, value))

    def __bool__(self):
        return True


@programs()
class Cases:
    def special_methods_in_order(x):
        log = []
        left, right = Left(log), Right(log)
        results = [left + right, 1 + right, -right, left < 3, 3 > left, left == 1, left != 2, 2 in left, 3 in left]
        right += 1
        right[1:2] = 3
        return results, right[4], log, not left, bool(right), x + 1

    @programs(two_vectors)
    def tensors_and_others(x, y):
        return x == None, x is None, 2 - x, [1] * 2, (1,) + (2,), x is x, "a" * 3, x + y  # noqa: E711

    @programs(graphs=1, breaks=1)
    def looking_into_a_tensor(x):
        return 3 in (x + 1)


def test_every_operator_of_python_has_its_handler():
    for function in (*BINARY, *IN_PLACE, *UNARY, operator.getitem, operator.contains, operator.is_, operator.not_):
        assert id(function) in FUNCTIONS
    assert torch.is_grad_enabled()


VALUES = {list: ([1], [2]), str: ("a%s", "b"), collections.deque: ([1], [2]), set: ({1}, {2}), int: (7, 2)}
PAIRS = [(list, list), (str, str), (int, int), (set, set), (str, int), (collections.deque, int), (int, list)]


def says(label, answer, log):
    def method(self, other):
        log.append((label, type(other).__name__))
        return label if answer else NotImplemented

    return method


def made(cls, name, methods, log):
    """A subclass whose methods return their names, or NotImplemented."""
    return type(name, (cls,), {method: says(f"{name}.{method}", answer, log) for method, answer in methods.items()})


def operands(pair, name, reflected, log):
    """Pairs of classes: two unrelated classes, a class with a class of Python's, a class with its subclass."""
    first, second = pair
    ways = [{}, {reflected: True}, {reflected: False}, {name: False}, {name: True, reflected: True}]
    for own, others in itertools.product(ways, ways):
        left = made(first, "Left", own, log)
        yield left, made(second, "Right", others, log)
        if first is second:
            yield left, made(left, "Below", others, log)
    for own in ways:
        yield first, made(second, "Right", own, log)
        yield made(first, "Left", own, log), second


@pytest.mark.parametrize(
    ("pair", "function"),
    pairs(
        PAIRS,
        [operator.add, operator.mul, operator.mod, operator.eq, operator.lt, operator.imul],
        full=[(list, list), (int, int), (str, int)],
        always=[operator.add, operator.eq],
    ),
)
def test_who_is_asked_first(pair, function):
    log = []
    name, reflected = BINARY[IN_PLACE.get(function, (None, function))[1]]
    first, second = (VALUES[cls][k] for k, cls in enumerate(pair))

    def asked(x, pairs):
        results = []
        for left, right in pairs:
            try:
                results.append(function(left(first), right(second)))
            except TypeError:
                results.append("TypeError")
        return x + 1, [(type(result).__name__, result) for result in results], [*log]

    pairs = [*operands(pair, name, reflected, log)]
    fails = [each for each in pairs if asked(0, [each])[1] == [("str", "TypeError")]]
    for group in [[each for each in pairs if each not in fails], *([each] for each in fails)]:
        log.clear()
        _, *expected = asked(torch.ones(1), group)
        log.clear()
        _, *found = minidynamo.compile(asked, backend="eager", recompile_limit=60)(torch.ones(1), group)
        assert found == expected
