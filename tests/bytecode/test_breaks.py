from __future__ import annotations

import copy
import sys
import traceback
import weakref

import pytest

from minidynamo.bytecode.breaks import make_break, make_loop, make_resume, make_suspended
from minidynamo.bytecode.instructions import decode
from minidynamo.bytecode.layout import NULL, VALUE, frame_point
from tests.bytecode import corpus
from tests.bytecode.stepping import Stepper

IDS = [f"{fn.__qualname__}-{k}" for k, (fn, _, _) in enumerate(corpus.CASES)]


def outcome(run, fn, args, kwargs):
    """Returns the result or exception of a call, its log, and its arguments afterwards."""
    args, kwargs = copy.deepcopy(args), copy.deepcopy(kwargs)
    corpus.log.clear()
    try:
        result = run(fn, *args, **kwargs)
        if callable(result):
            result = result()
    except Exception as e:
        result = type(e), str(e)
    return repr((result, corpus.log, [getattr(a, "__dict__", a) for a in args], kwargs))


def native(fn, *args, **kwargs):
    return fn(*args, **kwargs)


@pytest.mark.parametrize("fn, args, kwargs", corpus.CASES, ids=IDS)
def test_native_continuation_from_every_point(fn, args, kwargs):
    expected = outcome(native, corpus_copy(fn), args, kwargs)
    fn = corpus_copy(fn)
    stepper = Stepper(fn)
    outcome(lambda f, *a, **k: stepper.step(*a, **k), fn, args, kwargs)
    for count in range(len(stepper.breaks)):
        fn = stepper.fn = corpus_copy(fn)
        run = lambda f, *a, **k: stepper.step_then_continue(count, *a, **k)  # noqa: B023, E731
        assert outcome(run, fn, args, kwargs) == expected, count


@pytest.mark.parametrize("fn, args, kwargs", corpus.CASES, ids=IDS)
def test_loops_that_run_in_one_step(fn, args, kwargs):
    expected = outcome(native, corpus_copy(fn), args, kwargs)
    fn = corpus_copy(fn)
    assert outcome(lambda f, *a, **k: Stepper(f, whole_loops=True).step(*a, **k), fn, args, kwargs) == expected


def test_a_loop_ends_where_the_frame_continues():
    def positive(xs, limit):
        total = 0
        for x in xs:
            if x > limit:
                break
            total += x
        # Longer than the ends of functions that Python 3.12 copies to the `break`.
        doubled = total * 2
        return total, doubled, limit

    stepper = Stepper(positive, whole_loops=True)
    for xs in ([1, 2, 3], [1, 7, 3], []):
        assert stepper.step(xs, 5) == positive(xs, 5)
    (point,) = stepper.loops
    after, values = stepper.loops[point]([iter([2, 9]), 1, 5, 10])
    assert after.index == decode(positive.__code__)[point.index - 1].target
    assert dict(zip(after.parameters, values)) == {"total": 13, "limit": 5}


def branch_with_a_call(xs, work):
    for x in xs:
        if x:
            work(x)


def call_after_continue(xs, work):
    for x in xs:
        if x:
            continue
        work(x)


def inner_loop(xs, work):
    for x in xs:
        for y in x:
            y + 1


def deleted_later(xs, work):
    y = 1
    for x in xs:
        x + y
    del x
    return y


def maybe_unbound(xs, work):
    for x in xs:
        if x:
            y = x
    return y


@pytest.mark.parametrize("fn", [branch_with_a_call, call_after_continue, inner_loop, deleted_later, maybe_unbound])
def test_loops_that_never_run_in_one_step(fn):
    """Some iterations run other calls than most, or a slot may be unbound after the loop."""
    index = index_of(fn, "FOR_ITER") + 1
    point = frame_point(fn.__code__, index, [VALUE, VALUE], ["xs", "work"], [])
    assert make_loop(point, {}, lambda way: way) is None


def corpus_copy(fn):
    """Returns a function whose closure no earlier run has changed."""
    return corpus.free(1) if fn.__qualname__ == "free.<locals>.inner" else fn


@pytest.mark.parametrize("fn, args, kwargs", corpus.CASES, ids=IDS)
def test_warm_functions_do_the_same(fn, args, kwargs):
    """The interpreter specializes instructions after a few runs."""
    expected = outcome(native, corpus_copy(fn), args, kwargs)
    fn = corpus_copy(fn)
    stepper = Stepper(fn)
    for _ in range(24):
        fn = stepper.fn = corpus_copy(fn)
        assert outcome(lambda f, *a, **k: stepper.step(*a, **k), fn, args, kwargs) == expected


def items():
    yield from range(100)


def sums(xs):
    total = 0
    for x in xs:
        total += x
    return total


@pytest.mark.parametrize(
    "iterable", [items, lambda: list(range(100)), lambda: range(100), lambda: {k: k for k in range(100)}]
)
def test_loops_end_whatever_they_iterate_over(iterable):
    stepper = Stepper(sums)
    for _ in range(3):
        assert stepper.step(iterable()) == 4950


def test_loop_makes_each_function_once():
    stepper = Stepper(sums)
    stepper.step(range(10))
    made = len(stepper.breaks)
    stepper.step(range(1000))
    assert len(stepper.breaks) == made


class Thing:
    pass


def dies(probe):
    x = Thing()
    probe(x)
    y = [x, 1]
    del x
    probe(None)
    (y.pop(0), probe(None))[0] and probe(None)
    probe(None)
    return y


def given_up(x, probe):
    probe(x)
    x = 1
    probe(None)
    return x


def temporary(probe):
    for _ in [0]:
        probe(Thing())
        probe(None)
    with Region(probe(Thing())):
        probe(None)


class Region:
    def __init__(self, thing):
        self.thing = thing

    def __enter__(self):
        del self.thing

    def __exit__(self, *error):
        pass


def lifetimes(run, fn, *args):
    """Records the live objects at each call of `probe`."""
    references, seen = [], []

    def probe(thing):
        if thing is not None:
            references.append(weakref.ref(thing))
        seen.append([r() is not None for r in references])
        return thing

    run(fn, *[make() for make in args], probe)
    return seen


@pytest.mark.parametrize("fn, args", [(dies, ()), (given_up, (Thing,)), (temporary, ())])
def test_nothing_lives_longer_than_in_a_plain_call(fn, args):
    eager = lifetimes(native, fn, *args)
    broken = lifetimes(lambda f, *a: Stepper(f).step(*a), fn, *args)
    assert len(eager) == len(broken)
    for then, now in zip(eager, broken):
        assert [old or not new for old, new in zip(then, now)] == [True] * len(then), (eager, broken)


def test_the_list_is_emptied_before_the_instruction_runs():
    def f(probe):
        return probe()

    boxed = []
    point = frame_point(f.__code__, index_of(f, "CALL"), call_stack(0), [], [])
    step = make_break(point, {}, lambda way: way)
    boxed.append(lambda: list(boxed))
    way, values = step(boxed)
    assert values == [[]]
    assert way.stack == (VALUE,)


def test_a_handler_that_returns_to_the_same_place_stays_native():
    """The second visit finds `late` bound, unlike the first: only the first visit leaves."""

    def f(work):
        k = 0
        while True:
            try:
                k += 1
                work(k)
            except ValueError:
                late = k
                continue
            return k, late

    def work(k):
        if k < 3:
            raise ValueError

    call = index_of(f, "CALL")
    point = frame_point(f.__code__, call, call_stack(1), ["work", "k"], [])
    step = make_break(point, {"ValueError": ValueError}, lambda way: way)
    assert [name for name in point.parameters if not name.startswith("stack")] == ["work", "k"]
    assert step([work, 1, work, 1]) == (None, (3, 2))


def test_tracebacks_show_the_users_line():
    def f(x):
        y = x
        return y.missing(1)

    point = frame_point(f.__code__, index_of(f, "LOAD_ATTR", "LOAD_METHOD"), [VALUE], [], [])
    step = make_break(point, {}, lambda way: way)
    try:
        step([3])
    except AttributeError as e:
        frame = traceback.extract_tb(e.__traceback__)[-1]
    assert (frame.filename, frame.lineno) == (__file__, f.__code__.co_firstlineno + 2)
    assert frame.line == "return y.missing(1)"
    assert frame.name == step.__code__.co_name == "f"
    assert step.__code__.co_qualname == f"{f.__qualname__}.break_at_{point.index}"


def test_profilers_and_debuggers_can_look_at_the_frames():
    def look(thing):
        frame = sys._getframe(1)
        assert isinstance(dict(frame.f_locals), dict)
        assert isinstance(hash(frame.f_code), int)
        return thing

    def f(probe, k):
        keep = lambda: (k, g)  # noqa: E731
        probe(1)
        return keep()

    g = 5
    assert Stepper(f).step(look, 2) == (2, 5)


def test_functions_are_boxed_and_know_their_globals():
    point = frame_point(sums.__code__, index_of(sums, "GET_ITER"), [VALUE], ["total"], [])
    for made in (make_break(point, sums.__globals__, lambda way: way), make_resume(point, sums.__globals__)):
        assert made._boxed_call is True
        assert made.__globals__ is sums.__globals__
        assert made.__code__.co_argcount == 1
    assert make_resume(point, {})([[1, 2], 4]) == (None, 7)


def test_each_way_on_is_asked_for_once():
    asked = []
    point = frame_point(sums.__code__, index_of(sums, "FOR_ITER"), [VALUE], ["total"], [])
    step = make_break(point, {}, lambda way: asked.append(way) or len(asked))
    assert len(asked) == 2
    iterator = iter([7])
    assert step([iterator, 1]) == (1, [iterator, 7, 1])
    assert step([iter([]), 1]) == (2, [1])


def test_large_functions():
    """Uses more locals and names, and longer jumps, than a byte can count."""
    locals_ = ", ".join(f"v{k}" for k in range(258))
    names = " + ".join(f"g{k}" for k in range(130))
    source = f"""
def f(x, work):
    while x > 0:
        {locals_} = range(258)
        x -= {names}
        try:
            work(x)
        except ValueError:
            return v3, x
    return v257, (lambda: v7)()
"""

    def work(x):
        if x == -1:
            raise ValueError

    namespace = {f"g{k}": int(k == 0) for k in range(130)} | {"ValueError": ValueError}
    exec(source, namespace)
    stepper = Stepper(namespace["f"])
    assert stepper.step(2, work) == (257, 7)
    namespace["g1"] = 1
    assert stepper.step(1, work) == (3, -1)


def index_of(fn, *opnames):
    return next(i.index for i in decode(fn.__code__) if i.opname in opnames)


def call_stack(arguments):
    """Returns the stack before a call."""
    pair = (NULL, VALUE) if sys.version_info < (3, 13) else (VALUE, NULL)
    return (*pair, *[VALUE] * arguments)


def rows(n, seen):
    """Yields in a loop, in a try region, and in the middle of an expression."""
    for i in range(n):
        try:
            got = [i, (yield i * 2)]
        finally:
            seen.append(i)
        seen.append(got)
    return "end"


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_a_suspended_generator_is_made_again(taken):
    wait = next(i.index for i in decode(rows.__code__) if i.opname == "YIELD_VALUE")
    seen: list[object] = []
    original = rows(3, seen)
    for _ in range(taken):
        next(original)
    rest = iter(range(3))
    for _ in range(taken):
        next(rest)
    i = original.gi_frame.f_locals["i"]
    point = frame_point(rows.__code__, wait, [VALUE, VALUE, VALUE], ["i", "seen", "n"], [])
    assert set(point.locals) == {"i", "seen"}
    held = {"i": i, "seen": list(seen)}
    boxed = [rest, i, None, *(held[name] for name in point.locals)]
    again = make_suspended(point, globals(), rows.__qualname__)(boxed)
    assert next(again) is None and not boxed
    assert again.__name__ == "rows" and again.gi_frame.f_lineno == original.gi_frame.f_lineno
    assert finish(again, held["seen"]) == finish(original, seen)


def finish(generator, seen):
    """Returns the remaining items and the result of a suspended generator."""
    given = []
    try:
        while True:
            given.append(generator.send("sent"))
    except StopIteration as stop:
        return given, stop.value, seen


def test_a_suspended_generator_handles_what_is_thrown_in():
    wait = next(i.index for i in decode(rows.__code__) if i.opname == "YIELD_VALUE")
    point = frame_point(rows.__code__, wait, [VALUE, VALUE, VALUE], ["i", "seen"], [])
    seen: list[object] = []
    held = {"i": 7, "seen": seen}
    again = make_suspended(point, globals(), "rows")([iter(()), 7, None, *(held[name] for name in point.locals)])
    next(again)
    with pytest.raises(KeyError):
        again.throw(KeyError("thrown"))
    assert seen == [7] and list(again) == []
