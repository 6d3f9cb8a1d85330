"""Numbers known only at run time: the host program checks numbers that may not fit their dtype."""

from __future__ import annotations

import pytest
import torch

from minidynamo.codegen.ir.expr import Ref, Scalar
from minidynamo.codegen.ir.loops import Buffer, Name
from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.conversions import converted, may_not_fit, run_time_dtype
from minidynamo.codegen.lowering.formula import NotLowered, V
from minidynamo.codegen.lowering.values import Value
from minidynamo.codegen.runtime.host_functions import must_fit

CPU = torch.device("cpu")
NUMBER = V(Scalar("n"))


def builder(*shape: int) -> Builder:
    made = Builder()
    made.prefix = "made"
    made.results = (Buffer("made", shape, (1,) * len(shape), torch.float32, CPU),)
    return made


def test_known_numbers_and_those_in_tensors() -> None:
    wide = Value.whole(Buffer("w", (), (), torch.float64, CPU))
    assert (run_time_dtype(NUMBER), run_time_dtype(2.5)) == (torch.float64, None)
    assert may_not_fit(NUMBER, torch.float32) and may_not_fit(wide, torch.float32)
    assert not may_not_fit(NUMBER, torch.float64) and not may_not_fit(1e300, torch.float32)


def test_the_host_program_asks_about_what_may_not_fit() -> None:
    one = builder(3)
    assert converted(one, 2.5, torch.float32).dtype == torch.float32 and not one.prelude
    assert converted(one, NUMBER, torch.float64) == NUMBER and not one.prelude
    for _ in range(2):  # asked once
        assert converted(one, NUMBER, torch.float32).dtype == torch.float32
    [asked] = one.prelude
    assert asked.raises and asked.op is must_fit and asked.args == (Name("n"), torch.float32) and not one.nodes


@pytest.mark.parametrize("shape", [(), (1,), (0,)])
def test_one_element_is_left_to_torch(shape: tuple[int, ...]) -> None:
    with pytest.raises(NotLowered):
        converted(builder(*shape), NUMBER, torch.float32)
    with pytest.raises(NotLowered):
        converted(builder(3), V(Ref("x", torch.float64)), torch.float32)
