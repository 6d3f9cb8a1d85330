import inspect

import torch

from minidynamo.tracer.capture.trace import Trace
from minidynamo.tracer.frames.interpreter import Frame
from minidynamo.tracer.protocol import FrameView, GraphView, Tracer
from tests.tracer.capturing import capture


def members(protocol):
    return {name for name in (*vars(protocol), *protocol.__annotations__) if not name.startswith("_")}


def test_a_handler_may_ask_fifteen_things():
    assert len(members(Tracer)) == 15


def test_the_tracer_answers_what_the_protocols_promise():
    tx = Trace(0, frozenset())
    assert all(hasattr(tx, name) for name in members(Tracer))
    assert all(hasattr(tx.graph, name) for name in members(GraphView))
    assert members(FrameView) - set(vars(Frame)) <= {"code", "handled", "namespace"}
    for name in ("call", "call_method", "wrap", "guard", "emit", "break_graph"):
        promised = list(inspect.signature(getattr(Tracer, name)).parameters)
        assert list(inspect.signature(getattr(Trace, name)).parameters) == promised
    assert capture(lambda x: x + 1, torch.ones(2)).graph is not None
