import pytest
import torch

import minidynamo
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


@pytest.mark.filterwarnings("ignore:where received a uint8 condition")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_masks_of_bytes(backend):
    def f(x):
        mask = (x > 0).to(torch.uint8) * 3
        return torch.where(mask, x, 0.5), torch.where(condition=mask, input=x, other=-x), x.where(mask[0], x * 2)

    x = torch.randn(3, 4)
    made = minidynamo.compile(f, backend=backend, fullgraph=True)(x)
    assert all(map(torch.equal, made, f(x)))


def test_is_compiling():
    def f(x):
        return x + 1 if minidynamo.is_compiling() and torch.compiler.is_compiling() else x - 1

    assert minidynamo.compile(f, backend="eager")(torch.zeros(1)).item() == 1
    assert f(torch.zeros(1)).item() == -1


def test_default_dtype_is_guarded():
    def f(x):
        return x + 1, torch.get_default_dtype()

    compiled = minidynamo.compile(f, backend="eager")
    assert compiled(torch.zeros(1))[1] is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert compiled(torch.zeros(1))[1] is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


class Wrapped:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return 1


@programs()
class Cases:
    def questions(x):
        return (
            x + 1,
            torch.is_tensor(x),
            torch.is_tensor(3),
            torch.jit.is_scripting(),
            torch.overrides.has_torch_function((x,)),
            torch.is_floating_point(x),
            torch.is_complex(x),
            torch.numel(x),
            torch.get_default_dtype(),
        )

    @programs(lambda: (vector(), Wrapped()), breaks=1, graphs=1)
    def torch_function_of_the_user_breaks(x, w):
        y = x + 1
        return y, torch.overrides.has_torch_function((w,))

    def assertion_that_holds(x):
        torch._assert(x.shape[0] == 4, "four")
        assert x.ndim == 1, "one dimension"
        return x + 1
