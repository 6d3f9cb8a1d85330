"""Functions that host programs call, other than kernels and operators."""

import re

import pytest
import torch

from minidynamo.codegen.runtime.host_functions import count_as_new, must_fit
from minidynamo.graph.checked_results import with_strides


def test_a_tensor_is_copied_only_if_its_strides_tell():
    made = torch.arange(6.0).reshape(2, 3)
    assert with_strides(made[:1], (7, 1)).data_ptr() == made.data_ptr()
    copied = with_strides(made, (1, 2))
    assert copied.stride() == (1, 2)
    assert copied._version == 0
    assert torch.equal(copied, made)


def test_writes_can_be_forgotten():
    made = torch.zeros(3).add_(1)
    with torch.inference_mode():
        unversioned = torch.zeros(3)
    count_as_new(made, unversioned, None)
    assert made._version == 0


@pytest.mark.parametrize("number", [0, 2.5, -300, 2**40, 1e39, float("inf"), float("nan"), -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.uint8], ids=str)
def test_numbers_that_do_not_fit_raise_what_torch_raises(number, dtype):
    try:
        torch.full((2,), number, dtype=dtype)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            must_fit(number, dtype)
    else:
        must_fit(number, dtype)
