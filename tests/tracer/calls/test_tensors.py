import pytest
import torch

from minidynamo.tracer.calls.tensors import COMPUTED, FACTS, METHOD_BREAKS
from tests.end_to_end.programs import Programs, leaf, vector
from tests.tracer.capturing import capture

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs(lambda: torch.randn(2, 3))
def facts(x):
    y = x.t()
    return y.shape, y.dtype, y.device, y.ndim, y.size(0), y.numel(), y.stride(), y.is_contiguous(), y.is_cpu, x + 1


@programs(lambda: torch.randn(2, 3, dtype=torch.complex64))
def computed_attributes(x):
    return x.T + 1, x.real * 2, x.imag, x.mH, x.data * 2


@programs(leaf)
def gradient_that_is_not_there(x):
    return x.grad is None, x * 2


def with_gradient():
    x = torch.randn(3, requires_grad=True)
    x.sum().backward()
    return x


@programs(with_gradient, backward=False)
def gradient_that_is_there(x):
    y = x.grad * 2
    x.grad = None
    return y, x.grad


@programs(leaf)
def leaves(x):
    return (x * 2).is_leaf, x.detach().is_leaf, x * 3


@programs(lambda: torch.arange(3.0))
def methods(x):
    return x.add(1).mul_(2), x.view(3, 1).expand(3, 2), x.to(torch.float64), x.sum().expand(2), x.type_as(x.long())


@programs(lambda: torch.arange(3.0), graphs=None, breaks=None)
def values_are_needed(x):
    y = x + 1
    return y.tolist(), y[0].item(), int(y[1]), float(y.sum()), y.nonzero(), str(y.shape)


@programs(graphs=0, breaks=None)
def no_such_method_raises(x):
    return x.no_such_method()


def test_the_tables_name_attributes_that_tensors_have():
    x = torch.ones(2)
    for name in FACTS - {"names"}:
        assert hasattr(x, name) and not callable(getattr(x, name)), name
    for name in (*COMPUTED, *METHOD_BREAKS):
        assert hasattr(torch.Tensor, name), name


@pytest.mark.parametrize("name", ["item", "tolist", "numpy", "backward", "data_ptr", "storage_offset"])
def test_methods_that_break_say_why(name):
    diagnostic = capture(lambda x: getattr(x, name)(), vector()).exit.diagnostic
    assert diagnostic.code == "MD212" and name in diagnostic.what and diagnostic.why


def test_every_fact_is_one_that_tensors_have():
    assert all(hasattr(torch.ones(1), name) for name in FACTS)
