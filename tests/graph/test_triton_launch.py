"""A launch in a graph is an operator that starts the kernel; on fake tensors the launch only counts as a write."""

from __future__ import annotations

import torch

from minidynamo.compat import FakeTensorMode
from minidynamo.graph.triton_launch import Launch, Tensor, launch_kernel, number_of


class Kernel:
    """A fake kernel: `kernel[grid](x, out, factor)`."""

    def __getitem__(self, grid):
        def start(x, out, factor=1):
            out.detach().numpy()[:] = x.detach().numpy() * factor * grid[0]

        return start


kernel = Kernel()
LAUNCH = Launch(kernel, (2,), (Tensor(False, 0), Tensor(True, 0)), {"factor": 5})


def test_starts_the_kernel_with_its_arguments():
    x, out = torch.ones(2), torch.zeros(2)
    launch_kernel("kernel", [out], [x], number_of(LAUNCH))
    assert out.tolist() == [10, 10]


def test_equal_launches_have_one_number():
    again = Launch(kernel, (2,), (Tensor(False, 0), Tensor(True, 0)), {"factor": 5})
    other = Launch(kernel, (2,), (Tensor(False, 0), Tensor(True, 0)), {"factor": 6})
    assert number_of(again) == number_of(LAUNCH) != number_of(other)


def test_equal_numbers_of_other_classes_are_other_launches():
    assert len({number_of(Launch(kernel, (2,), (value,), {})) for value in (1, True, 1.0, 0.0, -0.0)}) == 5


def test_fake_tensors_only_count_the_write():
    with FakeTensorMode():
        x, out = torch.ones(2), torch.zeros(2)
        versions = x._version, out._version
        launch_kernel("kernel", [out], [x], number_of(LAUNCH))
        assert (x._version, out._version) == (versions[0], versions[1] + 1)


def test_autograd_sees_nothing():
    x, out = torch.ones(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    with torch.no_grad():
        version = out._version
        launch_kernel("kernel", [out], [x], number_of(LAUNCH))
    assert out._version == version and out.is_leaf
