"""Version counters vary from call to call, and the writes of a graph are known."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.graph.storage_resize import lower_version
from minidynamo.testing import CompileCounter
from minidynamo.tracer.records.traced_frame import Break
from tests.tracer.capturing import capture, targets

set_version_counter = torch._C._autograd._unsafe_set_version_counter


def counted(w, x):
    before = w._version
    w.add_(x)
    w.mul_(2)
    return before, w._version, w + 1


def set_back(w, x):
    before = w._version
    w.add_(x)
    w.mul_(2)
    set_version_counter((w,), (before,))
    return w + 1, w._version


def preserved_twice(w, x):
    for _ in range(2):
        with torch.autograd._unsafe_preserve_version_counter((w, x)):
            w.copy_(x + 1)
            x.mul_(2)
        w.add_(1)
    return w * 2


def broken_inside(w, x):
    with torch.autograd._unsafe_preserve_version_counter(w):
        w.copy_(x)
        minidynamo.graph_break()
        w.add_(1)
    return w * 2


def written(times):
    w = torch.zeros(4)
    for _ in range(times):
        w.add_(1)
    return w


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [counted, set_back, preserved_twice, broken_inside])
def test_same_as_eager_for_any_count(program, backend):
    f = minidynamo.compile(program, backend=backend, fullgraph=program is not broken_inside)
    for times in (3, 0, 1):
        given, other = (written(times), written(2)), (written(times), written(2))
        made, expected = f(*given), program(*other)
        assert [w._version for w in given] == [w._version for w in other]
        torch.testing.assert_close((made, given), (expected, other))
    assert f.stats.recompiles == 0


def test_the_node_takes_a_known_number_back():
    traced = capture(set_back, torch.zeros(4), torch.ones(4))
    (node,) = (node for node in traced.graph.graph.nodes if node.target is lower_version)
    assert node.args[1] == 2 and node.meta["mutates"]


def test_nothing_is_written_and_nothing_taken_back():
    def program(w):
        set_version_counter((w,), (w._version,))
        return w + 1

    assert lower_version not in targets(capture(program, torch.zeros(4)))


def behind_a_write(w, v):
    v.add_(1)
    return w._version


def test_views_count_together():
    counter = CompileCounter()
    f = minidynamo.compile(behind_a_write, backend=counter)
    w, shared = torch.zeros(4), torch.zeros(4)
    assert f(w, torch.zeros(2, 2)) == 0 and f(shared, shared.view(2, 2)) == 1 and f(w, torch.zeros(2, 2)) == 0
    traced = capture(behind_a_write, shared, shared.view(2, 2))
    assert isinstance(traced.exit, Break)


def of_the_graph(w):
    return (w * 2)._version


def of_another(w):
    v = w.view(2, 2)
    set_version_counter((v,), (w._version,))


def to_a_number(w):
    set_version_counter((w,), (5,))


def lists(w):
    before = w._version
    torch._foreach_add_([w], 1)
    set_version_counter((w,), (before,))


@pytest.mark.parametrize("program", [of_the_graph, of_another, to_a_number, lists])
def test_what_breaks(program):
    traced = capture(program, torch.zeros(4))
    assert isinstance(traced.exit, Break) and traced.exit.diagnostic.code == "MD212"
