"""A failure of generated code or of a backend is never hidden: the call may run again eagerly, with a notice.

An error of the program is raised by the eager run as well, without a notice.
"""

import contextlib
import signal
import time
import warnings

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.backends import built_in
from minidynamo.core.events import MinidynamoNotice
from minidynamo.errors import BackendError
from tests.end_to_end.programs import rows_of

X = torch.ones(2)


def broken(gm, example_inputs):
    def call(*args):
        raise RuntimeError("boom")

    return minidynamo.make_boxed_func(call)


def refusing(gm, example_inputs):
    raise RuntimeError("boom")


class Module(nn.Module):
    def forward(self, x):
        return x + 1


class Handling(nn.Module):
    def forward(self, x):
        try:
            return x + 1
        except ValueError:
            return x


class Around:
    def in_with(x):
        with torch.no_grad():
            return x + 1

    def in_try(x):
        try:
            return x + 1
        finally:
            pass

    def in_except(x):
        try:
            y = x + 1
        except RuntimeError:
            y = x
        return y

    def in_suppress(x):
        with contextlib.suppress(RuntimeError, IndexError):
            return x + 1
        return x

    def with_effect(x):
        log.append(1)
        return x + 1


def around_a_break(x):
    with torch.no_grad():
        y = x + 0
        print(end="")
        return y + 1


log = []
PROGRAMS = [Module(), Handling(), nn.Sequential(Module()), *rows_of(Around)]


@pytest.fixture
def events():
    found = []
    stop = minidynamo.on_event(lambda event: found.append((event.kind, event.data.get("diagnostic"))))
    yield lambda kind: [notice for k, notice in found if k == kind and notice.code == "MD523"]
    stop()


def stats_of(compiled):
    return minidynamo.stats(compiled)


@pytest.mark.provokes_failures
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: getattr(program, "__name__", type(program).__name__))
def test_a_failure_of_a_backend_is_told(program, events):
    compiled = minidynamo.compile(program, backend=broken)
    wanted = (X + 1).tolist()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for _ in range(5):
            assert compiled(X).tolist() == wanted
    assert len(events("fallback")) == stats_of(compiled).graph_failures == 5
    assert [str(one.message).split()[0] for one in shown] == ["MD523"] * 3
    text = str(shown[0].message)
    assert "RuntimeError: boom" in text and "Repair the backend" in text
    if not isinstance(program, nn.Sequential):  # its line is in torch's loop
        assert "test_graph_failures.py:" in text and "x + 1" in text
    explained = minidynamo.explain(compiled)
    assert "5 graph failures" in str(explained) and "MD523" in explained.breaks()
    assert explained.graph_failure_count == 5 and explained.graph_break_count == 0


@pytest.mark.provokes_failures
def test_a_failure_of_minidynamos_own_backend_is_to_be_reported(monkeypatch):
    monkeypatch.setattr(built_in, "eager", broken)
    with pytest.warns(MinidynamoNotice, match=r"(?s)MD523.*This is a bug of minidynamo: please report it"):
        assert minidynamo.compile(Around.in_try, backend="eager")(X).tolist() == [2.0, 2.0]


@pytest.mark.provokes_failures
def test_a_failure_beyond_a_graph_break_is_told(events):
    compiled = minidynamo.compile(around_a_break, backend=broken)
    with pytest.warns(MinidynamoNotice, match="MD523"):
        assert compiled(X).tolist() == [2.0, 2.0]
    assert len(events("fallback")) == stats_of(compiled).graph_failures > 0


def test_without_anything_to_save_the_error_is_raised():
    with pytest.raises(RuntimeError, match="boom"):
        minidynamo.compile(lambda x: x + 1, backend=broken)(X)


@pytest.mark.parametrize("program", [Module(), Around.in_with, Around.in_except], ids=["module", "with", "except"])
def test_a_backend_that_fails_to_compile_is_told(program):
    with pytest.raises(BackendError, match="boom"):
        minidynamo.compile(program, backend=refusing)(X)
    with pytest.warns(MinidynamoNotice, match="MD520"):
        assert minidynamo.compile(program, backend=refusing, on_error="eager")(X).tolist() == [2.0, 2.0]


# Errors of the program


class LooksUp:
    def looked_up(table, i):
        try:
            return table[i] + 1
        except IndexError:
            return table

    def looked_up_with_suppress(table, i):
        with contextlib.suppress(IndexError):
            return table[i] + 1
        return table

    def looked_up_below(table, i):
        def inner():
            try:
                return torch.embedding(table, i)
            except IndexError:
                return table

        return inner() + 1

    def not_handled(table, i):
        with torch.no_grad():
            return table[i] + 1

    def another_handler(table, i):
        try:
            return table[i] + 1
        except ValueError:
            return table

    def looked_up_beyond_a_break(table, i):
        try:
            print(end="")
            return table[i] + 1
        except IndexError:
            return table

    def looked_up_in_a_loop(table, i):
        found = []
        for k in range(3):
            try:
                found.append(table[i + k])
            except IndexError:
                found.append(table[:1] * k)
            finally:
                print(end="")
        return torch.cat(found)

    def looked_up_in_a_block_of_the_programs(table, i):
        with Skipping():
            print(end="")
            table = table[i] + 1
        return table * 2

    def refused(table, i):
        """Makes a decision that the graph checks; its error has a class of the program."""
        try:
            if (i > 2).any():
                raise LookupError("too large")
            return table + i.sum()
        except LookupError:
            return table


class Skipping:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return kind is IndexError


class LookedUp(nn.Module):
    def forward(self, table, i):
        return LooksUp.looked_up(table, i)


def outcome(function, *args):
    try:
        return function(*args).tolist()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    "program",
    [*rows_of(LooksUp), LookedUp()],
    ids=lambda program: getattr(program, "__name__", type(program).__name__),
)
def test_an_error_of_the_program_is_no_news(program, backend, events):
    """The autouse fixture of the suite would fail this test on a notice."""
    compiled = program if isinstance(program, nn.Module) else minidynamo.compile(program, backend=backend)
    if isinstance(program, nn.Module):
        program, compiled = LookedUp(), minidynamo.compile(LookedUp(), backend=backend)
    table = torch.arange(3.0)[:, None].clone()
    for position in (0, 7, 1, 9):
        i = torch.tensor([position])
        assert outcome(compiled, table, i) == outcome(program, table, i)
    assert stats_of(compiled).graph_failures == 0 and not events("notice")


# Errors of signal handlers


class Timeout(Exception):
    pass


@contextlib.contextmanager
def time_limit(handler):
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def stop(number, frame):
    raise Timeout


class Stopping:
    def stop(self, *args):
        raise Timeout


def waiting(gm, example_inputs):
    """A backend whose graph is slow in its second call."""
    calls = []

    def call(args):
        calls.append(1)
        end = time.monotonic() + (1 if len(calls) > 1 else 0)
        while time.monotonic() < end:
            pass
        return gm.forward(*args)

    call._boxed_call = True
    return call


@pytest.mark.parametrize("handler", [stop, Stopping().stop])
@pytest.mark.parametrize("program", [Module(), Around.in_with, Around.in_except, Around.with_effect])
def test_an_error_of_a_signal_handler_is_the_programs(program, handler, events):
    compiled = minidynamo.compile(Module() if isinstance(program, nn.Module) else program, backend=waiting)
    compiled(X)
    with pytest.raises(Timeout), time_limit(handler):
        compiled(X)
    assert stats_of(compiled).graph_failures == 0 and not events("fallback")
