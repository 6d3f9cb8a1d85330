"""Tests of minidynamo/autograd/graph/signature.py."""

import torch

from minidynamo.autograd.graph.signature import GraphSignature, ViewStep
from minidynamo.errors import UserLocation
from minidynamo.memory.plan import SavedValue
from tests.autograd.programs import graphs, inputs


def test_a_view_step_is_replayed():
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(ViewStep(torch.ops.aten.select.int, (1, 2)).apply(x), x[:, 2])


def test_saved_values_tell_their_story():
    where = UserLocation("net.py", 3, "forward")
    value = SavedValue("mm", (2, 3), torch.float32, 24, "aten.mm.default", where, "too expensive")
    assert str(value) == "mm: torch.float32[2, 3], 24 bytes, aten.mm.default: too expensive  net.py:3 in forward"
    assert GraphSignature((), (), saved=(value, value)).saved_bytes == 48


def test_a_signature_tells_what_a_graph_does():
    def program(x, y):
        y.add_(1)
        return x * y, x[0], y

    make = inputs((2, 3), (2, 3), grad=False)
    signature = graphs(program, make()[0]).signature
    assert [(m.index, m.result) for m in signature.mutations] == [(1, None)]
    assert [(p.origin, p.index, len(p.steps)) for p in signature.outputs] == [
        ("graph", 0, 0),
        ("input", 0, 1),
        ("input", 1, 0),
    ]
    assert signature.inputs == ("arg0", "arg1") and signature.saved == ()
