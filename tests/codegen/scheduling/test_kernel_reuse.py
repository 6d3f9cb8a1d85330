"""Tests of minidynamo/codegen/scheduling/kernel_reuse.py: a renamed kernel is the kernel that would be built."""

import pytest
import torch
from torch.nn import functional as F

from minidynamo.codegen.ir.text import kernel_text
from minidynamo.codegen.scheduling import kernel_reuse
from minidynamo.codegen.scheduling.fuse import Group, fuse
from minidynamo.codegen.scheduling.kernels import build_kernel
from minidynamo.codegen.scheduling.schedule import optimize, schedule
from tests.codegen.graphs import lower

X, W = torch.rand(8, 16), torch.rand(16, 16)
INDEX = torch.tensor([3, 1, 2])


def norms(x, w, i):
    for _ in range(3):
        x = F.layer_norm((x @ w).relu(), (16,))
    return x


def lookups(x, w, i):
    return [((x + k) @ w)[i].softmax(1).half() for k in range(3)]


def columns(x, w, i):
    found = [(x @ w) * (x @ w).sum(0) for _ in range(3)]
    return [torch.where(y > y.argmax(1, keepdim=True), y, -0.0) for y in found]


def zeros(x, w, i):
    return [torch.where(x @ w > 1, x, 0.0), torch.where(x @ w > 1, x, -0.0)]


@pytest.fixture
def built(monkeypatch):
    """Compares each kernel with the kernel that would be built, and records the names of built kernels."""
    names = []
    reuse = kernel_reuse.Kernels.build

    def build(*args, **kwargs):
        names.append(args[1])
        return build_kernel(*args, **kwargs)

    def compared(self, *args, **kwargs):
        kernel, expected = reuse(self, *args, **kwargs), build_kernel(*args, **kwargs)
        assert kernel == expected and kernel_text(kernel) == kernel_text(expected)
        assert [s.origins for s in kernel.statements()] == [s.origins for s in expected.statements()]
        return kernel

    monkeypatch.setattr(kernel_reuse, "build_kernel", build)
    monkeypatch.setattr(kernel_reuse.Kernels, "build", compared)
    return names


@pytest.mark.parametrize("program", [norms, lookups, columns, zeros])
def test_a_renamed_kernel_is_the_one_that_would_be_built(program, built):
    steps = schedule(lower(program, X, W, INDEX), join=True, verify=True)[1]
    kernels = [step for step in steps if hasattr(step, "statements")]
    assert len(kernels) >= 2 and (len(built) < len(kernels) or program is zeros)


def test_equal_layers_are_built_once(built):
    schedule(lower(norms, X, W, INDEX), join=True, verify=True)
    assert len(built) == 1


def test_constants_that_are_equal_but_not_the_same_are_told_apart(built):
    schedule(lower(zeros, X, W, INDEX), join=True, verify=True)
    assert len(built) == 2


def test_a_name_that_a_buffer_has_is_not_given_to_a_value(built):
    """Both kernels name the value of an operand that they read twice; a buffer has the name in the second kernel."""
    program = optimize(lower(lambda *xs: [(y := x @ x).exp() * y for x in xs], W, W.clone()), join=True)
    first, second = (item for item in fuse(program) if isinstance(item, Group))
    (read,) = {load.buffer for load in second.nodes[0].body.loads}
    buffers = {**program.buffers, f"{read}_at": program.buffers[read]}
    kernels = kernel_reuse.Kernels(verify=True)
    for name, group in (("first", first), ("second", second)):
        kernels.build(group, name, buffers, frozenset(n.out.name for n in group.nodes), frozenset(), reads_back=True)
    assert built == ["first", "second"]
