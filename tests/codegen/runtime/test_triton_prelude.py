"""The device functions of Triton kernels, run unchanged by the interpreter: folds element by element, too."""

import types

import numpy as np
import pytest
import torch

from minidynamo.codegen.runtime import triton_interpreter, triton_launch

SOURCE = """@jit
def folds(p_x, p_place, p_sum, p_prod, p_max, p_min, p_first, p_last, ROWS: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, 8)[None, :]
    x = tl.load(p_x + row * 8 + column)
    place = tl.load(p_place + row * 8 + column)
    tl.store(p_sum + row, row_sum(x))
    tl.store(p_prod + row, row_prod(x))
    tl.store(p_max + row, row_max(x))
    tl.store(p_min + row, row_min(x))
    tl.store(p_first + row, row_argmax(x, place))
    tl.store(p_last + row, row_argmin(x, place))
"""


def folded(monkeypatch, replaced: tuple[str, ...]) -> list[torch.Tensor]:
    monkeypatch.setattr(triton_interpreter, "REPLACED", replaced)
    triton_launch._environment.cache_clear()
    x = torch.tensor([[1, 3, 3, 2, 0, 0, 1, 2], [5, float("nan"), 1, float("nan"), 2, 2, 2, 2]])
    place = torch.arange(16).view(2, 8)
    floats = [torch.empty(2) for _ in range(4)]
    places = [torch.empty(2, dtype=torch.int64) for _ in range(2)]
    namespace = dict(triton_launch._environment(True))
    spec = triton_launch.LaunchSpec("folds", (), 2, 2, 0, 4, False)
    functions = triton_launch._functions(SOURCE, [spec], interpret=True)
    triton_interpreter.run(functions["folds"][(1,)], [x, place, *floats, *places], {"ROWS": 2})
    assert isinstance(namespace["row_sum"], types.FunctionType) == bool(replaced)
    return [*floats, *places]


@pytest.fixture(autouse=True)
def fresh_environment():
    yield
    triton_launch._environment.cache_clear()


@pytest.mark.parametrize("replaced", [(), triton_interpreter.REPLACED], ids=["as they are", "replaced"])
def test_folds_over_rows(monkeypatch, replaced):
    total, product, top, bottom, first, last = folded(monkeypatch, replaced)
    assert total[0] == 12 and product[0] == 0
    assert top[0] == 3 and bottom[0] == 0
    assert np.isnan([t[1].item() for t in (total, product, top, bottom)]).all()
    assert first.tolist() == [1, 9] and last.tolist() == [4, 9]
