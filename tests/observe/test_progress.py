from __future__ import annotations

import contextlib
import io
import re
import threading
import time

import pytest
import torch

import minidynamo
from minidynamo.config import config
from minidynamo.core import events
from minidynamo.core.events import on_event, phase, publish
from minidynamo.observe import progress
from minidynamo.observe.progress import ProgressLine


class Display:
    """Records the text of the terminal."""

    def __init__(self):
        self.lines, self.opened, self.closed = [], 0, 0

    @contextlib.contextmanager
    def __call__(self):
        self.opened += 1
        yield self
        self.closed += 1

    def update(self, line):
        self.lines.append(line)


@pytest.fixture
def display(monkeypatch):
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.01)
    shown = Display()
    unsubscribe = on_event(ProgressLine(shown, delay=0.05))
    with config.patch(progress="1"):
        yield shown
    unsubscribe()
    assert shown.opened == shown.closed
    assert not [t for t in threading.enumerate() if t.name == "minidynamo progress"]


def until(holds):
    """Waits for the watching thread, however busy the machine is."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_slow_compile_shows_frame_phase_and_seconds(display):
    publish("compile_start", "step")
    with phase("capture"), phase("autograd"):
        until(lambda: display.lines)
    publish("compile_end", "step")
    assert display.opened == 1
    assert re.fullmatch(r"minidynamo: compiling step: autograd \(\d+ s\)", display.lines[0])


def test_a_quick_compile_shows_nothing(display):
    publish("compile_start", "step")
    publish("compile_end", "step")
    assert display.opened == 0


def test_inner_compiles_share_the_line(display):
    publish("compile_start", "outer")
    publish("compile_start", "inner")
    until(lambda: display.lines)
    publish("compile_end", "inner")
    until(lambda: "outer" in display.lines[-1])
    publish("compile_end", "outer")
    assert display.opened == 1
    assert "inner" in display.lines[0]


def test_compiles_in_two_threads_share_the_line(display):
    here_ended = threading.Event()

    def compile_something():
        publish("compile_start", "there")
        here_ended.wait(60)
        until(lambda: "there" in display.lines[-1])
        publish("compile_end", "there")

    thread = threading.Thread(target=compile_something)
    publish("compile_start", "here")
    thread.start()
    until(lambda: any("and 1 more" in line for line in display.lines))
    publish("compile_end", "here")
    here_ended.set()
    thread.join()
    assert display.opened == 1
    assert "there" in display.lines[-1]


def test_a_compile_that_fails_ends_the_line(display):
    def f(x):
        time.sleep(0)
        return x + 1

    with pytest.raises(minidynamo.errors.Unsupported):
        minidynamo.compile(f, backend="eager", fullgraph=True)(torch.ones(1))


def test_the_package_shows_the_line_by_itself(capsys):
    with config.patch(progress="1"):
        publish("compile_start", "wanted")
        until(lambda: "minidynamo: compiling wanted" in capsys.readouterr().err)
        publish("compile_end", "wanted")


def test_nothing_is_drawn_where_no_terminal_is(capsys):
    with config.patch(progress="auto"):
        assert not progress.is_wanted()


def test_an_end_without_a_start_is_ignored(display):
    publish("compile_end", "step")
    publish("phase_end", "capture", seconds=0.0)


def test_nothing_is_shown_in_a_pipe(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with config.patch(progress="auto"):
        assert not progress.is_wanted()
    with config.patch(progress="1"):
        assert progress.is_wanted()
    with config.patch(progress="0"):
        assert not progress.is_wanted()


def test_the_real_line_is_drawn_on_standard_error(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with config.patch(progress="1"), progress.open_status() as status:
        status.update("minidynamo: compiling step: cc (3 s)")
    assert "compiling step: cc" in stream.getvalue()


def test_install_can_be_undone():
    before = list(events._subscribers)
    stop = progress.install()
    assert len(events._subscribers) == len(before) + 1
    stop()
    assert events._subscribers == before
