"""Tensors created in inference mode, inside of one graph: torch treats them later as in eager."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
test_same_as_eager = histories.test("eager", "aot_eager")


def weights():
    return torch.ones(3, requires_grad=True)


def facts(tensor):
    """Returns signs of an inference tensor: its own flag, and the outcomes of a write, of a save for backward, and of a
    version read."""
    asked = tensor.is_inference(), tensor.requires_grad, tensor.tolist()
    written = attempt(lambda: tensor.add_(1) is tensor)
    saved = attempt(lambda: (torch.ones_like(tensor, requires_grad=True) * tensor).sum().item())
    return asked, written, saved, attempt(lambda: tensor._version)


@histories
class Cases:
    def a_region(compiled):
        @compiled
        def f(x):
            with torch.inference_mode():
                y = x * 2
                inside = y.is_inference()
            return y, inside, x.is_inference()

        for x in (vector(), vector(), weights(), weights()):
            y, *asked = f(x)
            yield facts(y), asked

    def other_data_inside(compiled):
        @compiled
        def f(x):
            with torch.inference_mode():
                y = x[:1]
                y.data = y.data.clone()
                z = y * 2
            return y.is_inference(), z

        for x in (weights(), weights()):
            known, z = f(x)
            yield known, facts(z)

    def around_and_inside(compiled):
        @compiled
        def f(x):
            a = x + 1
            with torch.inference_mode():
                b = a * 2
                views = a.view(-1), b[1:], *b.chunk(2)
            return a, b, x + 3, *views

        for _ in range(2):
            results = f(vector())
            yield results[1].data_ptr() == results[5].data_ptr(), results[0].data_ptr() == results[3].data_ptr()
            yield [facts(result) for result in results]

    def used_behind_it(compiled):
        @compiled
        def f(x):
            with torch.inference_mode():
                y = x * 2
            return y + 1, y.view(-1)

        for _ in range(2):
            yield [facts(result) for result in f(vector())]

    def written_behind_it(compiled):
        @compiled
        def f(x):
            with torch.inference_mode():
                y = x * 2
            y.add_(1)
            return y

        for _ in range(2):
            yield attempt(f, vector())

    def saved_for_backward_behind_it(compiled):
        @compiled
        def f(x, weight):
            with torch.inference_mode():
                y = x * 2
            return (y * weight).sum()

        for _ in range(2):
            yield attempt(f, vector(), weights())

    def beside_training(compiled):
        @compiled
        def f(x, weight):
            loss = (x * weight).sum()
            with torch.inference_mode():
                y, z = weight * 2, loss.detach() + 1
            return loss + 1, y, z

        for _ in range(2):
            weight = weights()
            loss, y, z = f(vector(), weight)
            loss.backward()
            yield weight.grad, loss, facts(y), facts(z)

    def an_input_written_inside(compiled):
        @compiled
        def f(x):
            with torch.inference_mode():
                x.add_(1)
                return x * 2

        for _ in range(2):
            x = vector()
            yield facts(f(x)), x, x._version, x.is_inference()

    def switched_off_inside(compiled):
        @compiled
        def f(x):
            with torch.inference_mode():
                a = x + 1
                with torch.inference_mode(False):
                    b = x * 2
                return a, b, b * 3

        for _ in range(2):
            yield [facts(result) for result in f(vector())]
        for _ in range(2):
            with torch.inference_mode():
                results = f(vector())
            yield [result.is_inference() for result in results]

    def kept_in_an_object(compiled):
        class Box:
            pass

        box = Box()

        @compiled
        def f(x):
            with torch.inference_mode():
                box.made = x * 2
            return x + 1, box.made.is_inference()

        for _ in range(2):
            yield f(vector()), facts(box.made)

    def around_a_break(compiled):
        @compiled
        def f(x):
            with torch.inference_mode():
                y = x * 2
                minidynamo.graph_break()
                z = y + 1
            return y, z, x + 1

        for _ in range(2):
            yield [facts(result) for result in f(vector())]

    def a_view_from_inside_whose_base_is_written_outside(compiled):
        @compiled
        def f(x):
            with torch.inference_mode():
                y = x.flatten()
            z = y.view(3, 1)
            z.detach().mul_(2)
            return y, z

        @compiled
        def g(x):
            part, _, _ = x.unbind(0)
            view = part.view(1)
            with torch.inference_mode():
                part.view(-1)[0] = 3
            view.detach().mul_(2)
            return x * 2

        @compiled
        def without_grad(x):
            with torch.no_grad():
                y = x[1:]
            x.detach().mul_(2)
            return y, x * 2

        for function in (f, g, without_grad):
            for x in (weights(), weights()):
                results = function(x)
                results = results if isinstance(results, tuple) else (results,)
                yield [value.detach().tolist() for value in results], x.tolist()
                yield [attempt(lambda v=value: v.is_leaf) for value in results]

    def an_error_inside(compiled):
        @compiled
        def f(x, index):
            with torch.inference_mode():
                y = x * 2
                return y[index]

        for index in (0, 7, 7, 1):
            yield attempt(f, vector(), torch.tensor(index)), torch.is_inference_mode_enabled(), torch.is_grad_enabled()
            yield facts(vector() + 1)


# Functions composed of several operations, with Python rules in torch

dropout, lstm = torch.nn.Dropout(0.5).eval(), torch.nn.LSTM(4, 3, num_layers=2, bidirectional=True)
interpolate = torch.nn.functional.interpolate
COMPOSED = {
    "linear": lambda x: interpolate(x[None], scale_factor=1.7, mode="linear"),
    "bilinear": lambda x: interpolate(x[None, None], size=(3, 9), mode="bilinear", align_corners=True),
    "bicubic": lambda x: interpolate(x[None, None], scale_factor=1.7, mode="bicubic"),
    "nearest": lambda x: interpolate(x[None], scale_factor=2.0),
    "long short-term memory": lambda x: lstm(x)[0],
    "matrix product": lambda x: x.expand(2, 5, 4) @ x.t(),
    "transform": lambda x: torch.stft(x[:, 0], 4, return_complex=True, window=torch.ones(4)).abs(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", COMPOSED)
def test_what_consists_of_other_operations_is_computed_as_in_eager(name, dynamic):
    torch.manual_seed(0)
    x = torch.randn(5, 4)
    compiled = minidynamo.compile(COMPOSED[name], backend="aot_eager", dynamic=dynamic)
    with torch.inference_mode():
        assert torch.equal(compiled(x), COMPOSED[name](x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_dropout_that_drops_nothing_returns_its_argument(backend):
    """Makes no copy: a write to the result is a write to the argument."""

    def program(x):
        y = x.sin()
        return y, dropout(y), dropout(x), torch.nn.functional.dropout(x, 0.0)

    compiled, x = minidynamo.compile(program, backend=backend), torch.ones(3)
    with torch.inference_mode():
        y, dropped, given, whole = compiled(x)
    assert dropped is y and given is x and whole is x


def whether_it_requires_grad(x):
    y = x.flatten()
    return y, y.requires_grad, x.mT.sin().requires_grad


VIEWS_IN_PARTS = {
    "flatten": lambda x: x.flatten(),
    "mT": lambda x: x.mT,
    "reshape": lambda x: x.reshape(-1),
    "movedim": lambda x: x.movedim(0, 1),
    "tensor_split": lambda x: x.tensor_split(2),
    "view_as": lambda x: x.view_as(x),
    "einsum": lambda x: torch.einsum("ab->ba", x),
    "one behind the other": lambda x: x.flatten().reshape(4, 2).mT.movedim(0, 1),
    "a view": lambda x: x.view(-1),
    "written to": lambda x: x.sin().flatten().mul_(2),
    "asked": whether_it_requires_grad,
}


def views(x, results):
    for y in results if isinstance(results, (tuple, list)) else [results]:
        yield (y.requires_grad, y.is_inference(), y._is_view(), y._base is x) if isinstance(y, torch.Tensor) else y


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("name", VIEWS_IN_PARTS)
def test_views_that_consist_of_others_know_what_they_are_of(name, mode, backend):
    """In inference mode, too, a view of a tensor that requires grad requires grad."""
    function = VIEWS_IN_PARTS[name]
    with torch.inference_mode():
        made_there = torch.ones(2, 4)
    for dynamic in (None, True):
        compiled = minidynamo.compile(function, backend=backend, dynamic=dynamic)
        for x in (torch.ones(2, 4), torch.ones(2, 4, requires_grad=True), made_there):
            with mode():
                assert [*views(x, compiled(x))] == [*views(x, function(x))]
