"""Results of cached functions are read from the cache, if the time of the call is not visible."""

from __future__ import annotations

import functools
import logging
import warnings

import pytest
import torch

import minidynamo
from minidynamo.guards.source import Called
from minidynamo.tracer.records.traced_frame import Break
from tests.tracer.capturing import capture, targets

FOUND: list[int] = []
STATE = {"n": 2}


@functools.cache
def ones(n, *, fill=1):
    return torch.full((n,), fill)


@functools.cache
def numbers(n):
    return n * 2


@functools.cache
def random_numbers(n):
    return torch.rand(n)


@functools.cache
def notes(n):
    FOUND.append(n)
    return n


@functools.cache
def writes(n):
    return BUFFER.add_(n)


@functools.cache
def reads(n):
    return STATE["n"] * n


@functools.cache
def fails(n):
    raise ValueError(n)


@functools.cache
def takes(tensor):
    return tensor.shape


BUFFER = torch.zeros(2)


def test_a_tensor_lives_in_the_cache():
    traced = capture(lambda x: x * ones(2, fill=3) + ones(2, fill=3), torch.ones(2))
    places = {given.source.display(): type(given.source) for given in traced.inputs}
    assert places["ones(2, 3)"] is Called and len(places) == 2
    assert len(targets(traced)) == 2 and ones.cache_info().currsize == 1


def test_constants_need_no_cache():
    traced = capture(lambda x: x * numbers(4), torch.ones(2))
    assert not isinstance(traced.exit, Break) and numbers.cache_info().currsize == 0


@functools.cache
def package_of(cls):
    for each in cls.__mro__:
        if each.__module__.startswith("torch"):
            return {"name": each.__module__.partition(".")[0]}
    return {}


def test_the_class_of_a_tensor_is_a_key_of_the_cache():
    traced = capture(lambda x: x * len(package_of(x.__class__)["name"]), torch.ones(2))
    assert not isinstance(traced.exit, Break) and package_of.cache_info().currsize == 1


def changed_before(x, state):
    state["n"] = 7
    return x * reads(5)


def made_here(x, state):
    return takes(x * 2)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, state: random_numbers(2) * x,
        lambda x, state: notes(2) * x,
        lambda x, state: writes(2) * x,
        lambda x, state: fails(2),
        lambda x, state: ones(**{"n": 2, "fi ll": 3}),
        changed_before,
        made_here,
    ],
    ids=["random", "effect", "write", "raises", "odd name", "changed before", "made here"],
)
def test_what_ends_the_graph(program):
    traced = capture(program, torch.ones(2), STATE)
    assert isinstance(traced.exit, Break) and not FOUND and BUFFER.tolist() == [0, 0]
    assert random_numbers.cache_info().currsize == 0


class Recipe:
    def __init__(self, factor):
        self.factors = [factor, factor + 1]


@functools.lru_cache
def recipe(text, names, rank):
    return Recipe(len(text) + len(names) + rank)


@functools.lru_cache
def sizes(found, shape):
    return [size * found.factors[1] for size in shape], None, {0: shape[0]}


def uses_sizes(x, notes):
    notes.last = x.ndim
    new, _, first = sizes(recipe("abc", ("h",), x.ndim), x.shape)
    return x * new[0] + first[0]


def keeps_them(x, notes):
    notes.sizes = sizes(recipe("abc", ("h",), x.ndim), x.shape)
    return x + 1


def changes_them(x, notes):
    new, _, _ = sizes(recipe("abc", ("h",), x.ndim), x.shape)
    new.append(1)
    return x * len(new)


class Notes:
    last = sizes = None


@pytest.mark.parametrize(
    ("program", "breaks", "recompiles"), [(uses_sizes, 0, 1), (keeps_them, 1, None), (changes_them, 1, None)]
)
def test_results_of_numbers_that_vary(program, breaks, recompiles):
    def outcome(fn):
        sizes.cache_clear()
        notes = Notes()
        results = [fn(torch.ones(n, 3), notes).tolist() for n in (2, 3, 4, 5, 3)]
        return results, notes.sizes, notes.sizes is None or notes.sizes is sizes(recipe("abc", ("h",), 2), (3, 3))

    compiled = minidynamo.compile(program, backend="eager")
    assert outcome(compiled) == outcome(program)
    assert compiled.breaks().count("MD244 graph break") == breaks
    assert recompiles is None or compiled.stats.recompiles == recompiles


class Scaled:
    def __init__(self):
        self.scale = 2

    @functools.lru_cache  # noqa: B019
    def sizes(self, shape):
        return [size * self.scale for size in shape]

    def of_changed(self, x):
        self.scale = 3
        return x * self.sizes(x.shape)[0]

    def of_constants(self, x):
        found = recipe("ab", (), x.ndim)
        found.factors = [5, 6]
        return x * sizes(found, x.shape)[0][0]


@pytest.mark.parametrize("name", ["of_changed", "of_constants"])
def test_what_was_changed_is_seen(name):
    def outcome(make):
        sizes.cache_clear()
        recipe.cache_clear()
        scaled = Scaled()
        fn = make(getattr(scaled, name))
        results = [fn(torch.ones(n, 3)).tolist() for n in (2, 3, 4, 3)]
        scaled.scale = 4
        return results, scaled.sizes(torch.Size((3, 3))), [fn(torch.ones(n, 3)).tolist() for n in (3, 5)]

    assert outcome(lambda fn: minidynamo.compile(fn, backend="eager")) == outcome(lambda fn: fn)


LOGGER = logging.getLogger(__name__)


@functools.lru_cache(None)
def log_once(logger, text, *args):
    logger.warning(text, *args)


@functools.cache
def print_once(text):
    if text:
        print(text)


@functools.cache
def warn_once(text):
    warnings.warn(text)  # noqa: B028


@functools.cache
def warn_caller_once(text):
    warnings.warn(text, UserWarning, 2)


@functools.cache
def print_and_give(text):
    print(text)
    return 2


@pytest.mark.parametrize(
    ("function", "given", "breaks"),
    [
        (log_once, (LOGGER, "said %s", 3), 0),
        (print_once, ("said",), 0),
        (warn_once, ("said",), 0),
        (warn_caller_once, ("said",), 1),
        (print_and_give, ("said",), 1),
    ],
)
def test_messages_that_are_written_once(function, given, breaks, capsys, logged):
    def program(x):
        y = x * 2
        function(*given)
        return y + 1, function(*given)

    compiled = minidynamo.compile(program, backend="eager")
    seen = []
    for call in (program, compiled):
        function.cache_clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results = [call(torch.ones(1)) for _ in range(2)]
        function.cache_clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(call(torch.ones(1)))
        said = [(w.lineno, w.filename) for w in caught] + [(r.funcName, r.getMessage()) for r in logged]
        seen.append((results, capsys.readouterr(), said, function.cache_info()))
        logged.clear()
    assert seen[0] == seen[1]
    assert bool(compiled.stats.graph_breaks) == bool(breaks)
