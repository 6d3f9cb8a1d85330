from __future__ import annotations

import re
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch

import minidynamo
from minidynamo.core import events
from minidynamo.core.events import MinidynamoNotice, forget_notices, notice, on_event, phase, publish
from minidynamo.errors import Diagnostic


@pytest.fixture
def recorded():
    seen = []
    unsubscribe = on_event(seen.append)
    yield seen
    unsubscribe()


def test_a_subscriber_gets_events_until_it_leaves():
    seen = []
    unsubscribe = on_event(seen.append)
    publish("artifact", "graph", path="a.py")
    unsubscribe()
    unsubscribe()
    publish("artifact", "graph", path="b.py")
    assert [(e.kind, e.name, e.data) for e in seen] == [("artifact", "graph", {"path": "a.py"})]


def test_a_subscriber_that_raises_leaves_with_a_notice(recorded):
    def broken(event):
        raise KeyError("missing")

    unsubscribe = on_event(broken)
    with pytest.warns(MinidynamoNotice, match=r"MD113 .*broken, subscribed with on_event, raised KeyError(?s:.*)"):
        publish("artifact", "graph")
    publish("artifact", "graph")
    unsubscribe()
    assert [e.kind for e in recorded] == ["artifact", "notice", "artifact"]


def test_phases_do_not_count_what_is_inside_them(recorded):
    with phase("capture"):
        time.sleep(0.01)
        with phase("autograd"):
            time.sleep(0.03)
            with phase("cc"):
                time.sleep(0.05)
    seconds = {e.name: e.data["seconds"] for e in recorded if e.kind == "phase_end"}
    assert [e.name for e in recorded if e.kind == "phase_start"] == ["capture", "autograd", "cc"]
    assert 0.01 <= seconds["capture"] < 0.03 <= seconds["autograd"] < 0.05 <= seconds["cc"]


def test_a_phase_ends_when_an_error_passes(recorded):
    with pytest.raises(KeyError), phase("capture"):
        raise KeyError
    with phase("codegen"):
        pass
    assert [e.name for e in recorded if e.kind == "phase_end"] == ["capture", "codegen"]


def test_phases_of_threads_do_not_mix(recorded):
    def compile_something():
        with phase("cc"):
            time.sleep(0.02)

    with phase("capture"):
        thread = threading.Thread(target=compile_something)
        thread.start()
        thread.join()
    seconds = {e.name: e.data["seconds"] for e in recorded if e.kind == "phase_end"}
    assert seconds["cc"] >= 0.02
    assert seconds["capture"] >= 0.02


def test_a_notice_is_shown_once_and_published_always(recorded):
    forget_notices()
    diagnostic = Diagnostic("MD999", "nothing happened")
    with pytest.warns(MinidynamoNotice, match="MD999 nothing happened"):
        notice(diagnostic)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notice(diagnostic)
    forget_notices()
    with pytest.warns(MinidynamoNotice):
        notice(diagnostic)
    assert [e.kind for e in recorded] == ["notice"] * 3
    forget_notices()


def test_the_kinds_are_those_that_are_published_and_documented():
    package = Path(minidynamo.__file__).parent
    sources = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    assert set(re.findall(r"\bpublish\(\"(\w+)\"", sources)) == set(events.KINDS)
    page = (package.parent / "docs" / "api.md").read_text(encoding="utf-8")
    for kind, meaning in events.KINDS.items():
        assert f"| `{kind}` | {meaning} |" in page


@pytest.mark.parametrize("target", [lambda x: x + 1, torch.nn.ReLU(), torch.nn.Sequential(torch.nn.ReLU())])
def test_a_notice_points_to_the_users_line(target):
    compiled = minidynamo.compile(target, backend=lambda gm, inputs: gm.forward)
    with pytest.warns(MinidynamoNotice) as notices:
        line = sys._getframe().f_lineno + 1
        compiled(torch.ones(1))
    assert (notices[0].filename, notices[0].lineno) == (__file__, line)
