"""Settings that a program changes become switch nodes in the graph; reads of settings are answered, and guarded."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.graph.torch_settings import SWITCHES, allow_attention, allowed_attention, is_switch
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Result
from minidynamo.testing import assert_same_as_eager
from tests.tracer.capturing import capture


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


def attend(x):
    return scaled_dot_product_attention(x, x, x)


def by_one(x):
    with sdpa_kernel(SDPBackend.MATH):
        y = attend(x)
    return y, attend(x)


def by_two(x):
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        return attend(x), {SDPBackend.MATH: 1}[SDPBackend.MATH]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [by_one, by_two])
def test_what_computes_attention_is_switched(program, backend):
    before = allowed_attention()
    assert_same_as_eager(
        program, lambda: torch.randn(2, 3, 8, 16, requires_grad=True), calls=2, graphs=1, breaks=0, backend=backend
    )
    assert allowed_attention() == before


def test_what_computes_attention_is_guarded():
    x, compiled = torch.randn(2, 3, 80, 16), minidynamo.compile(attend, backend="aot_eager")
    for allowed in (True, False, True):
        allow_attention("flash", allowed)
        assert torch.equal(compiled(x), attend(x))
    assert compiled.stats.recompiles == 1
    assert "expected (True, True, True, True, True), got (True, False, True, True, True)" in str(compiled.why())


def test_whether_a_transform_runs_is_answered_where_none_can():
    question = torch._C._are_functorch_transforms_active

    def program(x):
        return x + 1 if question() else x * 2

    x = torch.randn(3)
    f = minidynamo.compile(program, backend="eager")
    assert torch.equal(f(x), x * 2) and f.stats.graph_breaks == 0
    with pytest.warns(MinidynamoNotice, match="MD303"):
        assert torch.equal(torch.vmap(f)(x), x + 1)
    mapped = minidynamo.compile(lambda x: torch.vmap(program)(x), backend="eager")
    assert torch.equal(mapped(x), x + 1)


def test_functions_of_pybind_are_called_by_their_name():
    f = minidynamo.compile(lambda x: (x + 1, torch._C._get_max_operator_version()), backend="eager")
    assert f(torch.ones(2))[1] == torch._C._get_max_operator_version()
    assert "MD207 graph break: _get_max_operator_version() cannot be captured" in f.breaks()
