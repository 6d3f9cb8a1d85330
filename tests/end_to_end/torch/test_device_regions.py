"""New tensors under device contexts and default devices, and meta tensors in each backend."""

from __future__ import annotations

import pytest
import torch

from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]
test_same_as_eager = histories.test(*BACKENDS)


def places(tensors):
    return [*tensors], [str(tensor.device) for tensor in tensors]


def without_data(*shape, **options):
    return torch.ones(*shape, device="meta", **options)


@histories
class Cases:
    def factories(compiled):
        @compiled
        def f(x):
            with torch.device("meta"):
                a = torch.tensor(1.5), torch.tensor([1, 2]), torch.as_tensor([2.0]), torch.full((2,), 3.0), torch.eye(2)
                b = (
                    *(torch.ones(3), torch.empty(2), torch.rand(2), torch.arange(4), torch.linspace(0, 1, 3)),
                    torch.randperm(4),
                )
                like = torch.zeros_like(x), torch.ones_like(a[0])
                with torch.device("cpu"):
                    inner = torch.tensor([1.5]), torch.randn(2), torch.tensor(2.0)
                last = torch.tensor([2])
            outer = torch.tensor(3.0)
            return x * outer, *a, *b, *like, *inner, last, outer

        for _ in range(2):
            yield places(f(vector()))

    def numbers_under_a_context(compiled):
        @compiled
        def f(x):
            with torch.device("meta"):
                scale = torch.tensor(0.1, device="cpu")
                scale += 1
            return x * scale, x * 0.3 + 1.7, scale.item()

        for _ in range(2):
            yield f(vector())

    def a_default_device(compiled):
        f = compiled(lambda x: (x * 0.3, torch.ones(2), torch.tensor(1.5), torch.tensor([1, 2])))
        x = vector()
        try:
            for device in ("cpu", "meta", None, "meta"):
                torch.set_default_device(device)
                yield places(f(x))
        finally:
            torch.set_default_device(None)

    def a_module_made_without_data(compiled):
        @compiled
        def f(x):
            with torch.device("meta"):
                layer = torch.nn.Linear(3, 4)
            return x + 1, layer.weight.detach(), layer.bias.detach()

        for _ in range(2):
            yield places(f(vector()))

    def inputs_without_data(compiled):
        @compiled
        def f(m, weight, x):
            y = torch.nn.functional.linear(m, weight).relu().softmax(-1)
            return y, y.sum(0), m.t(), m * torch.tensor(2.0), x + 1, x.to("meta") * 2, torch.zeros_like(m, device="cpu")

        for _ in range(2):
            results = f(without_data(3, 4), without_data(5, 4, requires_grad=True), vector())
            yield places(results)
            results[0].sum().backward()

    def writes_without_data(compiled):
        @compiled
        def f(m):
            m.add_(1)
            m[0] = 2
            return m, m.t()

        for _ in range(2):
            m = without_data(3, 4)
            results = f(m)
            yield results, results[0] is m, m._version

    def data_that_nobody_has(compiled):
        to_cpu, item, mixed = (
            compiled(program)
            for program in (lambda m: m.to("cpu") + 1, lambda m: m.sum().item(), lambda m: m + vector())
        )
        for _ in range(2):
            for program in (to_cpu, item, mixed):
                yield type(attempt(program, without_data(3))).__name__

    def sizes_that_change(compiled):
        f = compiled(lambda m: (m * 2, m.shape[0]))
        for size in (2, 3, 4):
            yield f(without_data(size))

    def beside_training(compiled):
        @compiled
        def f(weight, x):
            m = torch.tensor([1.0, 2.0], device="meta")
            return (weight * x).sum(), m * 2, weight.to("meta").sum()

        for _ in range(2):
            weight = torch.ones(3, requires_grad=True)
            loss, *others = f(weight, vector())
            loss.backward()
            yield weight.grad, places(others)
