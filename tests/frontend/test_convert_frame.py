"""The path of one frame: the graphs passed to the backend, and frames that cannot be captured."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch

import minidynamo
from minidynamo.core.events import MinidynamoNotice, on_event
from minidynamo.core.names import weakly
from minidynamo.errors import BackendError, InternalError, Unsupported
from minidynamo.frontend import convert_frame as subject
from minidynamo.tracer.frames import interpreter


def double(x):
    return x * 2


def test_a_frame_without_operations_needs_no_backend():
    def backend(gm, example_inputs):
        raise AssertionError("asked")

    f = minidynamo.compile(lambda x, n: (n + 1, x), backend=backend)
    x = torch.ones(1)
    assert f(x, 2) == (3, x) and f(x, 2)[1] is x
    assert (f.stats.compiles, f.stats.graphs, f.graphs) == (1, 0, [])


def test_breaks_are_published_with_the_users_line():
    seen = []
    stop = on_event(lambda event: seen.append(event) if event.kind == "graph_break" else None)

    def f(x):
        y = x + 1
        minidynamo.graph_break("why not")
        return y

    minidynamo.compile(f, backend="eager")(torch.ones(1))
    stop()
    [event] = seen
    assert event.data["diagnostic"].where.source_line().strip() == 'minidynamo.graph_break("why not")'


def endless(x):
    n = 0
    while n < 1_000_000:
        n += 1
    print("handling")
    return x + 1


def test_a_frame_that_cannot_be_cut_runs_as_written_after_one_notice(capsys, monkeypatch):
    monkeypatch.setattr(interpreter, "STEP_LIMIT", 20_000)
    f = minidynamo.compile(endless, backend="eager")
    with pytest.warns(MinidynamoNotice) as notices:
        assert [f(torch.ones(1)).item() for _ in range(3)] == [2, 2, 2]
    assert capsys.readouterr().out == "handling\n" * 3
    assert len(notices) == 1 and f.stats.fallbacks == 1 and f.stats.misses == 1
    with pytest.raises(Unsupported, match="fullgraph=True"):
        minidynamo.compile(endless, backend="eager", fullgraph=True)(torch.ones(1))


@pytest.mark.provokes_failures
def test_a_bug_of_ours_costs_speed_only_and_is_written_down(monkeypatch):
    def broken(request):
        raise RuntimeError("a bug\nwith details")

    monkeypatch.setattr(subject, "trace_frame", broken)
    f = minidynamo.compile(double, backend="eager")
    with pytest.warns(MinidynamoNotice, match="MD299 double runs eagerly") as notices:
        assert [f(torch.ones(1)).item() for _ in range(2)] == [2, 2]
    [text] = [str(notice.message) for notice in notices]
    assert "RuntimeError: a bug" in text and "with details" not in text
    path = text.partition("report it with ")[2].split()[0].rstrip(".")
    with open(path, encoding="utf-8") as file:
        assert "Traceback" in (report := file.read()) and "with details" in report
    with pytest.raises(InternalError) as caught:
        minidynamo.compile(double, backend="eager", fullgraph=True)(torch.ones(1))
    assert type(caught.value.__cause__) is RuntimeError


@pytest.mark.provokes_failures
def test_a_bug_in_printing_costs_speed_only_too(monkeypatch):
    def broken(*args, **keywords):
        raise KeyError("bug")

    monkeypatch.setattr(subject, "print_residual", broken)
    f = minidynamo.compile(lambda x: x * 2, backend="eager")
    with pytest.warns(MinidynamoNotice, match="MD299"):
        assert f(torch.ones(1)).item() == 2


def test_after_a_backend_error_the_next_call_tries_again():
    # With fake tensors, and again with real tensors.
    answers = iter([ZeroDivisionError("once")] * 2)

    def backend(gm, example_inputs):
        for error in answers:
            raise error
        return minidynamo.make_boxed_func(gm.forward)

    f = minidynamo.compile(double, backend=backend)
    with pytest.raises(BackendError, match="once"):
        f(torch.ones(1))
    assert f(torch.ones(1)).item() == 2
    assert (f.stats.misses, f.stats.compiles) == (2, 1)


def test_a_stolen_list_that_is_bound_anew_is_the_callers_no_more():
    """After the break, `xs` may be a different list than the donated list."""

    def f(xs, ys):
        a = xs[0] + 1
        xs = ys
        minidynamo.graph_break()
        return a + xs[0]

    given, kept = [torch.ones(1)], [torch.ones(1) * 2]
    assert minidynamo.compile(f, backend="eager", steal=("xs",))(given, kept).item() == 4
    assert len(kept) == 1


def test_weakly_calls_without_keeping_alive():
    class Owner:
        def method(self, a, b=1):
            return a + b

    owner = Owner()
    call = weakly(owner.method)
    gone = weakref.ref(owner)
    assert call(1, b=2) == 3
    del owner
    gc.collect()
    assert gone() is None


def test_a_graph_that_fails_for_a_handler_is_no_news():
    """The handler of the function catches the operation's error; the rerun is how the error reaches the handler."""

    @torch.library.custom_op("minidynamo_test_convert::refuse", mutates_args=())
    def refuse(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("mine")

    refuse.register_fake(lambda x: x.clone())

    def f(x):
        try:
            return refuse(x)
        except ZeroDivisionError as error:
            return str(error)

    assert minidynamo.compile(f, backend="eager")(torch.ones(1)) == "mine"


def test_data_that_nest_too_deep_are_no_bug():
    def innermost(nested):
        while isinstance(nested, list):
            nested = nested[0]
        return nested + 1

    nested, limit = torch.ones(1), sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        for _ in range(2 * sys.getrecursionlimit()):
            nested = [nested]
        with pytest.warns(MinidynamoNotice, match="MD210 .*innermost runs eagerly"):
            assert minidynamo.compile(innermost, backend="eager")(nested).item() == 2
        with pytest.raises(Unsupported, match="MD210 fullgraph=True, but"):
            minidynamo.compile(innermost, backend="eager", fullgraph=True)(nested)
    finally:
        sys.setrecursionlimit(limit)
