import torch

from minidynamo.bytecode.instructions import decode
from minidynamo.tracer.capture.trace import Trace
from minidynamo.tracer.frames.interpreter import NULL, Frame
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.callables import CellVariable


def frame_of(fn, **local_slots):
    tx = Trace(0, frozenset())
    cells = {name: CellVariable() for name in fn.__code__.co_cellvars}
    return Frame(tx, fn.__code__, fn.__globals__, local_slots, cells)


def test_stack():
    frame = frame_of(lambda: None)
    one, two = ConstantVariable(1), ConstantVariable(2)
    frame.push(NULL)
    frame.push(one)
    frame.push(two)
    assert frame.peek(2) is one
    assert frame.pop_many(2) == [one, two] and frame.stack == [NULL]


def test_it_runs_to_the_result_with_its_location_on_the_way():
    frame = frame_of(lambda a: a * 2, a=ConstantVariable(21))
    frame.tx.frames.append(frame)
    while frame.result is None:
        frame.step()
    assert frame.result.value == 42
    assert frame.location.lineno == frame.code.co_firstlineno
    assert frame.instruction.opname == "RETURN_VALUE"


def test_names_are_read_wherever_they_live():
    def f(a, b):
        return lambda: b

    frame = frame_of(f, a=ConstantVariable(1))
    frame.cells["b"].contents = ConstantVariable(2)
    assert frame.read("a").value == 1 and frame.read("b").value == 2 and frame.read("c") is None
    assert {name: value.value for name, value in frame.local_variables.items()} == {"a": 1, "b": 2}
    assert len(frame.instructions) == len(decode(f.__code__))
    assert torch.is_grad_enabled()
