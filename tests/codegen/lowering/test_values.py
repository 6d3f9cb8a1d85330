"""Values: chains of views are changes of coordinates."""

import torch

from minidynamo.codegen.ir.index import as_index
from minidynamo.codegen.ir.loops import Buffer
from minidynamo.codegen.lowering.values import Value, dimensions

BUFFER = Buffer("x", (2, 3, 4), (12, 4, 1), torch.float32, torch.device("cpu"))


def text(value: Value) -> list[str]:
    return [str(i) for i in value.index]


def test_whole():
    value = Value.whole(BUFFER)
    assert value.is_whole and text(value) == ["d0", "d1", "d2"]


def test_reshape_there_and_back_is_the_same():
    value = Value.whole(BUFFER)
    assert value.reshape((6, 4)).reshape((2, 3, 4)) == value
    assert value.reshape((24,)).reshape((2, 3, 4)) == value
    assert value.reshape((2, 1, 12)).reshape((2, 3, 4)) == value
    assert not value.reshape((6, 4)).is_whole


def test_reshape_splits_and_joins_coordinates():
    assert text(Value.whole(BUFFER).reshape((2, 12))) == ["d0", "(d1 // 4)", "(d1 % 4)"]


def test_broadcast_load():
    row = Value.whole(Buffer("b", (1, 4), (4, 1), torch.float32, torch.device("cpu")))
    at = [as_index(v) for v in dimensions((2, 3, 4), "i")]
    assert [str(i) for i in row.broadcast_load(at).index] == ["0", "i2"]
    scalar = Value.whole(Buffer("s", (), (), torch.float32, torch.device("cpu")))
    assert scalar.broadcast_load(at).index == ()
