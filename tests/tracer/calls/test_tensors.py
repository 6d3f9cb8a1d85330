import pytest
import torch

from minidynamo.tracer.calls.tensors import COMPUTED, FACTS, METHOD_BREAKS
from tests.end_to_end.programs import Programs, leaf, vector
from tests.tracer.capturing import capture

programs = Programs()
test_same_as_eager = programs.test()


def with_gradient():
    x = torch.randn(3, requires_grad=True)
    x.sum().backward()
    return x


@programs(leaf)
class Cases:
    def gradient_that_is_not_there(x):
        return x.grad is None, x * 2

    @programs(with_gradient, backward=False)
    def gradient_that_is_there(x):
        y = x.grad * 2
        x.grad = None
        return y, x.grad

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


@pytest.mark.parametrize("name", ["item", "numpy", "backward", "data_ptr", "storage_offset"])
def test_methods_that_break_say_why(name):
    diagnostic = capture(lambda x: getattr(x, name)(), vector()).exit.diagnostic
    assert diagnostic.code == "MD212" and name in diagnostic.what and diagnostic.why
