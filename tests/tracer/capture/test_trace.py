import zlib

import pytest
import torch

import minidynamo
from minidynamo.errors import GraphBreak
from minidynamo.tracer.capture.frame import register_all
from minidynamo.tracer.capture.trace import Trace
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.lazy.lazy_value import next_lazy
from minidynamo.variables.callables import BuiltinVariable
from minidynamo.variables.objects import OpaqueVariable
from tests.end_to_end.programs import vector
from tests.tracer.capturing import capture


@pytest.fixture
def tx():
    register_all()
    tx = Trace(0, frozenset())
    tx.frames.append(Frame(tx, tx.call.__func__.__code__, globals(), {}, {}))
    return tx


def test_what_breaks(tx):
    opaque = OpaqueVariable(object())
    for code, ask in (
        ("MD217", lambda: next_lazy(tx, opaque)),
        ("MD214", lambda: tx.emit(torch.add, [opaque, opaque])),
        ("MD202", lambda: tx.raises(IndexError("no such item"))),
        ("MD206", lambda: tx.getattr(opaque, "x")),
        ("MD206", lambda: tx.call(OpaqueVariable(zlib.crc32))),
        ("MD207", lambda: tx.call(BuiltinVariable(torch.get_rng_state))),
    ):
        with pytest.raises(GraphBreak) as caught:
            ask()
        assert caught.value.code == code and caught.value.diagnostic.what.startswith("graph break: ")


@pytest.mark.parametrize(
    ("code", "fn"),
    [
        ("MD215", lambda x: torch.nonzero(x)),
        ("MD215", lambda x: x[x > 0]),
        ("MD202", lambda x: x @ x.view(2, 2) @ torch.ones(7)),
        ("MD201", lambda x: x if x.sum() > 0 else -x),
    ],
    ids=["nonzero", "mask", "shapes", "if"],
)
def test_codes_of_breaks_at_operations(code, fn):
    diagnostic = capture(fn, vector()).exit.diagnostic
    assert diagnostic.code == code
    assert diagnostic.where.filename == __file__


def test_a_break_in_library_code_is_told_at_the_users_line():
    diagnostic = capture(lambda x: torch.manual_seed(3), vector()).exit.diagnostic
    assert diagnostic.where.filename == __file__ and "manual_seed" in diagnostic.where.expression()


def test_in_a_module_of_torch_operations_are_told_at_its_own_lines():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU())
    compiled = minidynamo.compile(model, backend="eager")
    compiled(torch.ones(1, 2))
    (graph,) = minidynamo.explain(compiled).graphs
    places = [node.meta["user_location"] for node in graph.graph.nodes if node.op == "call_function"]
    assert [place.function for place in places] == ["forward", "forward"]
    assert [place.source_line().split("(")[0].strip() for place in places] == ["return F.linear", "return F.gelu"]
