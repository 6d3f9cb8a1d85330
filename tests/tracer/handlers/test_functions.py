import torch

import minidynamo
from minidynamo.testing import CompileCounterWithBackend
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


@programs()
class Cases:
    def fields(x):
        def scale(a: int, b: "str" = 3, *, c=4) -> float:
            "Scale it."
            return a * b * c

        code = (
            scale.__code__.co_argcount,
            scale.__code__.co_varnames,
            scale.__doc__,
            scale.__module__,
            scale.__qualname__,
        )
        return scale(x), scale.__defaults__, scale.__kwdefaults__, scale.__annotations__, code, scale.__closure__

    def changed_fields(x):
        def scale(a, b: int = 3, *, c=4):
            return a * b * c

        scale.__kwdefaults__["c"] = 5
        scale.__annotations__["d"] = float
        scale.__name__ = "other"
        scale.__doc__ = "Other."
        scale.unit = x + 1
        scale.count = 1
        scale.count += 1
        scale.gone = 3
        del scale.gone
        return scale(x), scale.__annotations__ is scale.__annotations__, scale.__name__, hasattr(scale, "gone"), scale

    def called_and_bound(x):
        def scale(self, factor):
            return self * factor

        return scale.__call__(x, 2), scale.__get__(x)(3), scale.__get__(None, int) is scale

    def cells(x):
        n = 2

        def read():
            return n * x

        return read(), [cell.cell_contents is x for cell in read.__closure__]

    @programs(breaks=None, graphs=None)
    def a_name_that_is_no_text(x):
        def f():
            return x + 1

        try:
            f.__name__ = 3
        except TypeError as error:
            return f(), str(error)


def _known(x, function):
    if function in (torch.relu, torch.tanh, torch.batch_norm, torch.nn.functional.gelu, max):
        return x + 1
    return x * 2 if function != torch.sin and [].append != function else x


def test_functions_of_c_are_looked_for_among_others():
    counter = CompileCounterWithBackend("eager")
    compiled = minidynamo.compile(_known, backend=counter, recompile_limit=20)
    kept = []
    for function in (torch.tanh, torch.batch_norm, torch.nn.functional.gelu, max, torch.nn.functional.silu, print) * 2:
        assert torch.equal(compiled(torch.ones(2), function), _known(torch.ones(2), function))
    assert counter.frame_count == 6
    for function in (torch.sin, kept.append, "relu", None):
        assert torch.equal(compiled(torch.ones(2), function), _known(torch.ones(2), function))
