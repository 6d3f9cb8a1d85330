from __future__ import annotations

import gc
import inspect
import re
import sys
import threading
import types
import weakref

import pytest

from minidynamo.bytecode.breaks import make_break, run_steps
from minidynamo.bytecode.instructions import decode
from minidynamo.bytecode.layout import frame_point
from minidynamo.core import artifacts
from minidynamo.core.events import on_event
from minidynamo.core.stats import Stats
from minidynamo.errors import CodeCopied
from minidynamo.frontend.dispatcher import Dispatcher, Native
from minidynamo.frontend.frames import ResumeFrame, RootFrame
from minidynamo.guards.cache import Entry
from minidynamo.guards.check import Condition
from minidynamo.guards.state import KernelSettings


class Thing:
    pass


def root_dispatcher(fn, compile_entry, *, name=None, **options):
    return Dispatcher(RootFrame(fn, name), compile_entry, **options)


def resume_dispatcher(point, namespace, compile_entry, **options):
    return Dispatcher(ResumeFrame(point, namespace), compile_entry, counts_calls=False, **options)


def entry(body, condition="True", watched=(), **namespace):
    return Entry((), Condition(condition, namespace, watched, KernelSettings()), body)


def returning(value):
    def body(boxed):
        boxed.clear()
        return value

    return body


def never(dispatcher, values):
    raise AssertionError("must not compile")


def always_native(dispatcher, values):
    return Native(permanent=False)


def echo(boxed):
    values = tuple(boxed)
    boxed.clear()
    return values


def positional_only(a, b=2, /, c=3):
    "Documented."
    return a, b, c


def keyword_only(a, *, k, l=5):  # noqa: E741
    return a, k, l


def everything(a, /, b: int = 1, *args: int, k="k", **kw) -> tuple:
    return a, b, args, k, kw


def no_parameters():
    return ()


def clashing(boxed, fits=1, *miss, body0=0, **native):
    return boxed, fits, miss, body0, native


CALLS = [
    (positional_only, (1,), {}),
    (positional_only, (1, 5), {"c": 7}),
    (keyword_only, (1,), {"k": 2}),
    (keyword_only, (), {"a": 1, "k": 2, "l": 3}),
    (everything, (1, 2, 3, 4), {"k": 5, "m": 6}),
    (everything, (1,), {}),
    (no_parameters, (), {}),
    (clashing, (1, 2, 3), {"body0": 4, "other": 5}),
]


@pytest.mark.parametrize("fn, args, kwargs", CALLS)
def test_every_signature_reaches_body_miss_and_native(fn, args, kwargs):
    expected = fn(*args, **kwargs)
    native = root_dispatcher(fn, always_native).function
    assert native(*args, **kwargs) == expected
    compiled = root_dispatcher(fn, lambda d, values: entry(echo)).function
    assert compiled(*args, **kwargs) == expected
    assert compiled(*args, **kwargs) == expected


def test_entries_are_tried_newest_first_and_the_rest_misses():
    made = []

    def compile_entry(dispatcher, values):
        made.append(list(values))
        (x,) = values
        return entry(returning(f"compiled for {x}"), f"x == {x}")

    dispatcher = root_dispatcher(lambda x: None, compile_entry)
    compiled = dispatcher.function
    assert [compiled(v) for v in (1, 2, 1, 2, 3, 1)] == [f"compiled for {v}" for v in (1, 2, 1, 2, 3, 1)]
    assert made == [[1], [2], [3]]
    stats = dispatcher.stats
    assert (stats.misses, stats.compiles, stats.recompiles, stats.native_runs) == (3, 3, 2, 0)
    assert [e.condition.text for e in dispatcher.entries] == ["x == 1", "x == 2", "x == 3"]
    source = dispatcher.source()
    assert source.index("x == 3") < source.index("x == 2") < source.index("x == 1")
    assert dispatcher.next_number == 3


def test_generated_source_is_this():
    dispatcher = root_dispatcher(everything, never)
    compiled = dispatcher.function
    dispatcher.install(entry(echo, "a is None"))
    assert (
        re.sub(r"(function|left_out_)\d+", r"\g<1>7", dispatcher.source())
        == """\
def everything(a, /, b=None, *args, k=None, **kw):
    try:
        changed = function7.__code__ is not code or function7.__defaults__ is not defaults or \
function7.__kwdefaults__ is not keyword_defaults
    except NameError:
        raise __import__("minidynamo.frontend.frames", fromlist=["refuse_copy"]).refuse_copy('everything') from None
    if changed:
        return follow_change([a, b, args, k, kw])
    if b is left_out_7_b:
        b = defaults[0]
    if k is left_out_7_k:
        if 'k' not in keyword_defaults:
            return follow_change([a, b, args, k, kw])
        k = keyword_defaults['k']
    try:
        if None not in ticks:
            time_guards([a, b, args, k, kw])
        try:
            fits = True if a is None else False
        except Exception:
            fits = False
        if fits:
            boxed = [a, b, args, k, kw]
            del a, b, args, k, kw
            return body0(boxed)
        boxed = [a, b, args, k, kw]
        del a, b, args, k, kw
        return miss(boxed, 2)(boxed)
    except hide():
        raise
"""
    )
    assert inspect.getsource(compiled.__code__) == dispatcher.source()


def test_a_guard_that_raises_does_not_fit():
    dispatcher = root_dispatcher(lambda x: x, always_native)
    compiled = dispatcher.function
    for condition in ("x.missing", "x['k']", "x[9]", "unknown_name", "1 // 0", "len(x) == 1"):
        dispatcher.install(entry(never, condition))
    assert compiled(3) == 3


def test_errors_of_the_compiler_reach_the_caller_and_leave_everything_usable():
    outcomes = [ValueError("no"), Native(permanent=False)]

    def compile_entry(dispatcher, values):
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    compiled = root_dispatcher(lambda x: x + 1, compile_entry).function
    with pytest.raises(ValueError, match="no"):
        compiled(1)
    assert compiled(1) == 2


@pytest.mark.parametrize("when", ["the text is written", "the text is done"])
def test_an_interrupt_while_code_is_written_leaves_everything_usable(monkeypatch, when):
    load = artifacts.load

    def interrupted(kind, *args):
        monkeypatch.setattr(artifacts, "load", load)
        if when == "the text is done":
            load(kind, *args)
        raise KeyboardInterrupt

    def compile_entry(dispatcher, values):
        if values == [1]:
            monkeypatch.setattr(artifacts, "load", interrupted)
        return entry(returning(f"body {values[0]}"), f"a == {values[0]}")

    dispatcher = root_dispatcher(lambda a: None, compile_entry)
    call = dispatcher.function
    with pytest.raises(KeyboardInterrupt):
        call(1)
    assert (call(1), call(2), call(1)) == ("body 1", "body 2", "body 1")
    assert dispatcher.stats.hits == 2
    assert dispatcher.next_number == 2


def test_native_for_good_asks_once():
    asked = []

    def compile_entry(dispatcher, values):
        asked.append(values[0])
        return Native(permanent=True)

    dispatcher = root_dispatcher(lambda x: x + 1, compile_entry)
    compiled = dispatcher.function
    assert [compiled(1), compiled(2)] == [2, 3]
    assert asked == [1]
    dispatcher.reset()
    assert compiled(3) == 4
    assert asked == [1, 3]


def test_a_call_that_cannot_be_compiled_leaves_the_entries_of_others():
    asked = []

    def compile_entry(dispatcher, values):
        asked.append(values[0])
        return Native(permanent=True) if values[0] < 0 else entry(returning("compiled"), "x > 0")

    compiled = root_dispatcher(lambda x: x, compile_entry).function
    assert [compiled(x) for x in (1, -1, 2, -2)] == ["compiled", -1, "compiled", -2]
    assert asked == [1, -1]


def test_dead_entries_are_dropped():
    thing = Thing()
    dispatcher = root_dispatcher(lambda x: x, lambda d, values: entry(returning("new")))
    compiled = dispatcher.function
    body = returning("old")
    dispatcher.install(entry(body, "thing_0() is not None", (weakref.ref(thing),), thing_0=weakref.ref(thing)))
    assert compiled(1) == "old"
    reference = weakref.ref(body)
    del thing, body
    assert compiled(1) == "new"
    assert len(dispatcher.entries) == 1
    assert "thing_0" not in compiled.__globals__
    assert reference() is None


def test_code_of_an_earlier_version_still_works():
    dispatcher = root_dispatcher(lambda x: x, always_native)
    compiled = dispatcher.function
    dispatcher.install(entry(returning("old"), "x == y_0", y_0=1))
    old = types.FunctionType(compiled.__code__, compiled.__globals__)
    assert old(1) == "old"
    dispatcher.reset()
    dispatcher.install(entry(returning("new"), "x == y_1", y_1=1))
    assert old(1) == "new"  # its guards are gone, so it misses, and calls the current version
    assert compiled.__globals__["body0"]([1]) == "new"  # between the guards and the body of the old version


@pytest.mark.parametrize("outcome", ["entry", "native", "hit"])
def test_an_argument_given_up_by_the_caller_dies_in_the_body(outcome):
    seen = []

    def original(x, k=1):
        reference = weakref.ref(x)
        del x
        seen.append(reference() is None)

    def body(boxed):
        x, _ = boxed
        boxed.clear()
        reference = weakref.ref(x)
        del x
        seen.append(reference() is None)

    dispatcher = root_dispatcher(original, lambda d, v: Native(False) if outcome == "native" else entry(body))
    compiled = dispatcher.function
    if outcome == "hit":
        dispatcher.install(entry(body, "type(x) is not None"))
    compiled(Thing())
    compiled(x=Thing(), k=3)
    assert seen == [True, True]
    assert dispatcher.stats.compiles == (outcome == "entry")


def test_inputs_that_the_guards_have_read_go_to_the_body_and_die_there():
    seen = []

    def body(boxed, inputs=None):
        value = (inputs or boxed).pop()
        boxed.clear()
        reference = weakref.ref(value)
        del value
        seen.append((inputs is not None, reference() is None))

    def reading(dispatcher, values):
        condition = Condition("[x]", {}, (), KernelSettings(), returns_inputs=True)
        return Entry((), condition, body)

    compiled = root_dispatcher(lambda x: x, reading).function
    compiled(Thing())  # the call that compiles
    compiled(Thing())
    assert seen == [(False, True), (True, True)]
    assert "return body0(boxed, fits)" in inspect.getsource(compiled.__code__)


def test_inputs_for_a_body_that_is_gone_are_dropped():
    seen = []

    def body(boxed, inputs=None):
        value = boxed.pop()
        if inputs:
            inputs.clear()
        reference = weakref.ref(value)
        del value
        seen.append(reference() is None)

    condition = Condition("[x]", {}, (), KernelSettings(), returns_inputs=True)
    dispatcher = root_dispatcher(lambda x: x, lambda d, v: Entry((), condition, body))
    compiled = dispatcher.function
    compiled(Thing())
    dispatcher.reset()
    gone = compiled.__globals__["body0"]
    thing = Thing()
    boxed, inputs = [thing], [thing]
    del thing
    gone(boxed, inputs)
    assert seen == [True, True] and not inputs


def test_a_kept_argument_lives():
    """The negative control: a wrapper's own local holds the argument."""
    seen = []

    def body(boxed):
        (x,) = boxed
        boxed.clear()
        reference = weakref.ref(x)
        del x
        seen.append(reference() is None)

    compiled = root_dispatcher(lambda x: x, lambda d, v: entry(body)).function
    kept = Thing()
    compiled(kept)
    assert seen == [False]


def test_a_dropped_function_is_gone_at_once():
    dispatcher = root_dispatcher(lambda x: x, lambda d, v: entry(echo))
    compiled = dispatcher.function
    compiled(1)
    references = [weakref.ref(compiled), weakref.ref(dispatcher)]
    gc.disable()
    try:
        del compiled, dispatcher
        assert [r() for r in references] == [None, None]
    finally:
        gc.enable()


def test_a_new_function_knows_the_entries():
    dispatcher = root_dispatcher(lambda x: x, never)
    dispatcher.install(entry(returning("a"), "x == 1"))
    dispatcher.install(entry(returning("b"), "x == 2"))
    assert dispatcher.function(1) == "a"
    assert dispatcher.function(2) == "b"


def test_recompiles_are_published_with_the_failed_guards():
    events = []
    unsubscribe = on_event(lambda e: events.append(e) if e.kind == "recompile" else None)
    try:
        compiled = root_dispatcher(lambda x: x, lambda d, v: entry(echo, f"x == {v[0]}"), name="mine").function
        compiled(1)
        assert events == []
        compiled(2)
    finally:
        unsubscribe()
    (event,) = events
    assert event.name == "mine"
    assert len(event.data["failures"]) == 1


def test_compiling_a_frame_may_run_it():
    def compile_entry(dispatcher, values):
        assert compiled(values[0]) == 2 * values[0]
        return entry(echo)

    dispatcher = root_dispatcher(lambda x: 2 * x, compile_entry)
    compiled = dispatcher.function
    assert compiled(4) == (4,)
    assert (dispatcher.stats.misses, dispatcher.stats.native_runs) == (2, 1)


def test_two_threads_compile_once():
    inside, goes_on = threading.Event(), threading.Event()
    results, made = [], []

    def compile_entry(dispatcher, values):
        made.append(values[0])
        inside.set()
        assert goes_on.wait(10)
        return entry(returning("compiled"), "x == 1")

    compiled = root_dispatcher(lambda x, *, k=2: x, compile_entry).function
    first = threading.Thread(target=lambda: results.append(compiled(1)))
    first.start()
    assert inside.wait(10)
    second = threading.Thread(target=lambda: results.append(compiled(1, k=3)))
    second.start()
    second.join(0.1)
    goes_on.set()
    first.join(10)
    second.join(10)
    assert results == ["compiled", "compiled"]
    assert made == [1]


def test_calls_while_other_threads_add_and_drop_entries():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    errors = []
    dispatcher = root_dispatcher(
        lambda x: x, lambda d, v: entry(echo, f"x == n_{d.next_number}", **{f"n_{d.next_number}": v[0]})
    )
    compiled = dispatcher.function

    def call(start):
        for k in range(300):
            try:
                if compiled((start + k) % 5) not in [((start + k) % 5,), (start + k) % 5]:
                    errors.append(k)
            except Exception as e:
                errors.append(e)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(20):
            dispatcher.reset()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert errors == []


def loop(xs):
    total = 0
    for x in xs:
        total += x
    return total


def for_iter_point():
    code = loop.__code__
    index = next(i.index for i in decode(code) if i.opname == "FOR_ITER")
    return frame_point(code, index, ["value"], ["xs", "total"], [])


def test_resume_point_takes_its_list_to_the_body():
    seen = []

    def body(boxed):
        seen.append(list(boxed))
        boxed.clear()
        return None, "done"

    dispatcher = resume_dispatcher(for_iter_point(), loop.__globals__, lambda d, v: entry(body, "total == 3"))
    assert dispatcher.parameters == ("stack_0", "total")
    iterator = iter([4])
    boxed = [iterator, 3]
    assert dispatcher.function(boxed) == (None, "done")
    assert boxed == []
    assert run_steps(dispatcher.step(), [iterator, 3]) == "done"
    assert seen == [[iterator, 3]] * 2
    assert dispatcher.stats.misses == 1
    assert (
        dispatcher.source()
        == """\
def loop_from_line_NN(boxed):
    stack_0, total, = boxed
    if None not in ticks:
        time_guards([stack_0, total])
    try:
        fits = True if total == 3 else False
    except Exception:
        fits = False
    if fits:
        del stack_0, total
        return body0(boxed)
    del stack_0, total
    return miss(boxed, 2)(boxed)
""".replace("NN", str(loop.__code__.co_firstlineno + 2))
    )


def test_resume_point_runs_natively_to_the_end():
    for decision in (Native(permanent=False), Native(permanent=True)):
        dispatcher = resume_dispatcher(for_iter_point(), loop.__globals__, lambda d, v: decision)  # noqa: B023
        for _ in range(2):
            assert dispatcher.function([iter([4, 5]), 3]) == (None, 12)


def test_loop_of_break_functions_is_collected():
    """The break function refers to its own resume point, whose entry holds the break function."""
    point = for_iter_point()
    stats = Stats()
    points: dict[object, Dispatcher] = {}

    def resume_at(at):
        if at not in points:
            points[at] = resume_dispatcher(at, loop.__globals__, compile_entry, stats=stats)
        return points[at].step()

    def compile_entry(dispatcher, values):
        at = next(p for p, d in points.items() if d is dispatcher)
        step = make_break(at, loop.__globals__, resume_at)
        return entry(lambda boxed: (step, boxed))

    assert run_steps(resume_at(point), [iter(range(100)), 0]) == sum(range(100))
    assert stats.compiles == len(points) >= 4
    references = [weakref.ref(d.function) for d in points.values()]
    points.clear()
    gc.collect()
    assert [r() for r in references] == [None] * len(references)


def test_copies_of_parameters_do_not_collide_with_ours():
    def original(boxed, body1, fits, miss, native):
        return boxed, body1, fits, miss, native

    dispatcher = root_dispatcher(original, lambda d, v: entry(echo, "boxed == 1"))
    compiled = dispatcher.function
    assert compiled(1, 2, 3, 4, 5) == compiled(1, 2, 3, 4, 5) == (1, 2, 3, 4, 5)
    assert "_boxed = [boxed, body1, fits, miss, native]" in dispatcher.source()


def test_code_in_another_function_is_refused_and_stays():
    one, other = root_dispatcher(lambda x: x, always_native), root_dispatcher(lambda x: -x, always_native)
    ours, theirs = one.function, other.function

    def plain(x):
        return x + 1

    for function in (ours, plain):
        function.__code__ = theirs.__code__
        for _ in range(2):
            with pytest.raises(CodeCopied, match="MD307"):
                function(3)
            one.reset()
    assert theirs(3) == -3
