"""What stands in for the device under Triton's interpreter: its math library, half types, checks."""

import pytest
import torch

from minidynamo.codegen.runtime import triton_launch
from minidynamo.codegen.runtime.triton_launch import LaunchSpec


def run(body: str, *tensors: torch.Tensor) -> None:
    parameters = ", ".join("abcd"[: len(tensors)])
    source = f"@jit\ndef kernel({parameters}, ROWS: tl.constexpr):\n    i = tl.arange(0, ROWS)\n    {body}\n"
    spec = LaunchSpec("kernel", (), 8, 8, 0, 4, False)
    functions = triton_launch._functions(source, [spec], True)
    triton_launch._interpreted(functions["kernel"], spec)(*tensors)


def test_the_math_library_is_that_of_torch():
    x, out = torch.rand(8), torch.empty(8)
    run("tl.store(b + i, libdevice.erf(tl.load(a + i)))", x, out)
    torch.testing.assert_close(out, x.erf())


def test_two_operands():
    x, y, out = torch.rand(8), torch.rand(8), torch.empty(8)
    run("tl.store(c + i, libdevice.atan2(tl.load(a + i), tl.load(b + i)))", x, y, out)
    torch.testing.assert_close(out, torch.atan2(x, y))


def test_bfloat16_is_rounded_to_nearest():
    x, out = torch.randn(8), torch.empty(8, dtype=torch.bfloat16)
    run("tl.store(b + i, to_bfloat16(tl.load(a + i)))", x, out)
    assert torch.equal(out, x.bfloat16())
    back = torch.empty(8)
    run("tl.store(b + i, from_bfloat16(tl.load(a + i)))", out, back)
    assert torch.equal(back, out.float())


@pytest.mark.parametrize("bad", [-1, 5])
def test_a_bad_index_raises_what_torch_raises(bad):
    index, out = torch.zeros(8, dtype=torch.int64), torch.empty(8, dtype=torch.int64)
    index[3] = bad
    with pytest.raises(IndexError, match="out of range in self"):
        run("tl.store(b + i, check_index(tl.load(a + i), 5, i < 4), i < 4)", index, out)


def test_a_masked_index_is_not_checked():
    index, out = torch.zeros(8, dtype=torch.int64), torch.empty(8, dtype=torch.int64)
    index[4:] = 99
    run("tl.store(b + i, check_index(tl.load(a + i), 5, i < 4), i < 4)", index, out)
    assert out[:4].tolist() == [0] * 4
