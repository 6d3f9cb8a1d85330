"""Settings that a program changes are switches in the graph; questions about them are answered, and guarded."""

from __future__ import annotations

import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Result
from minidynamo.switches import SWITCHES, is_switch
from tests.tracer.capture import capture


def switches(traced):
    return [node.target for node in traced.graph.graph.nodes if is_switch(node.target)]


def test_autocast_is_switched_on_and_off_in_the_graph():
    def program(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    found = switches(capture(program, torch.randn(2, 2)))
    assert found.count(torch.set_autocast_enabled) == 2
    assert found.count(torch.autocast_increment_nesting) == 1
    assert found[-1] in SWITCHES


def test_a_setting_that_stays_is_no_node():
    def program(x):
        torch.set_default_dtype(torch.float32)
        return x + 1

    assert switches(capture(program, torch.randn(2))) == []


def test_an_answer_is_guarded():
    def program(x):
        return x + torch.get_num_threads()

    guards = capture(program, torch.randn(2)).guards
    (guard,) = [guard for guard in guards if isinstance(guard.source, Result)]
    assert guard.kind is GuardKind.EQUALS and guard.expected == torch.get_num_threads()
