import itertools

import pytest
import torch

from minidynamo.tracer.graph import dead_code
from minidynamo.tracer.graph.dead_code import may_raise
from tests.tracer.capturing import capture, targets


def test_unused_pure_operations_go():
    def f(x):
        x.sin()
        torch.relu(x + 1)
        return x * 2

    assert len(targets(capture(f, torch.ones(2)))) == 1


def test_writes_random_numbers_and_unknown_operations_stay():
    def f(x, y):
        x.add_(1)
        torch.rand(3)
        torch.nn.functional.dropout(x)
        torch.add(x, 1, out=y)
        y[0] = 3
        return x

    assert len(targets(capture(f, torch.ones(2), torch.ones(2)))) == 5


def test_nothing_but_grad_mode_is_no_graph():
    def f(x):
        with torch.no_grad():
            x + 1
        return x

    assert capture(f, torch.ones(2)).graph is None


def test_unused_inputs_are_dropped():
    traced = capture(lambda x, y: (x + 1, y.sin() is None)[0], torch.ones(2), torch.ones(2))
    assert [graph_input.source.display() for graph_input in traced.inputs] == ["x"]


def test_what_may_raise_for_some_values_stays():
    def f(x, i):
        x[i]
        torch.gather(x, 0, i)
        torch.linalg.cholesky(x.view(1, 1))
        i // i
        i % i
        torch.normal(0.0, x)
        return x

    traced = capture(f, torch.ones(1), torch.zeros(1, dtype=torch.int64))
    assert len(targets(traced)) == 7  # the view is used
    assert sum(map(may_raise, traced.graph.graph.nodes)) == 6


def test_what_raises_for_shapes_and_types_alone_goes():
    def f(x):
        x[0], x[:, None], x.view(1, 3) @ x.view(3, 1), x % 2, x // 3, x.sum(), torch.zeros(3), x.numel()
        return x * 2

    assert len(targets(capture(f, torch.ones(3)))) == 1


def test_a_write_that_raises_for_no_data_is_no_reason_to_expect_errors():
    def f(x, y):
        torch.nn.functional.hardswish(x, inplace=True)
        y.copy_(x.slice_scatter(x[:1].adjoint().mT, 0, 0, 1))
        return torch.nn.functional.local_response_norm(x[None], 2)

    traced = capture(f, torch.ones(3, 3), torch.ones(3, 3))
    assert len(targets(traced)) == 8 and not any(map(may_raise, traced.graph.graph.nodes))


FILLINGS = {
    torch.float32: [0.0, 1.0, -1.0, float("nan"), float("inf"), -float("inf"), 3e38, 1e-40, 7.5],
    torch.int64: [0, 1, -1, 100, 2**63 - 1, -(2**63)],
    torch.bool: [False, True],
}
MORE = [(), (1,), (0,), (0.5,), (0, 1), ((4, 4),), ([2, 2],), (2, 2), ((1, 1), (3, 3))]
LOOKED_UP = {"normal"}  # distinguished by `may_raise`


def outcomes(function, shape, fillings, tensors, more):
    """Returns the errors of a call for tensors with these numbers, in sequence; "" for no error."""
    for start in range(len(fillings)):
        given = [torch.full(shape, fillings[(start + k) % len(fillings)]) for k in range(tensors)]
        try:
            function(*given, *more)
        except Exception as error:
            yield f"{type(error).__name__}: {error}"
        else:
            yield ""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_no_data_makes_the_operations_raise_that_cannot():
    wrong = set()
    spaces = (torch, torch.nn.functional, torch.Tensor)
    for name in sorted((dead_code._CANNOT_RAISE | dead_code._KEPT) - LOOKED_UP):
        functions = [function for space in spaces if callable(function := getattr(space, name, None))]
        shapes = [(4, 4), (4,), (1, 2, 4, 4)]
        for function, shape, dtype, count, more in itertools.product(functions, shapes, FILLINGS, (1, 2, 3), MORE):
            found = {*outcomes(function, shape, FILLINGS[dtype], count, more)}
            if "" in found and len(found) > 1:
                wrong.add((name, *sorted(found)))
    assert wrong == set()


def test_overloads_of_aten_raise_like_functions_of_torch():
    aten = torch.ops.aten

    def f(x, i):
        safe = (
            aten.mm.default(x, x),
            aten.gelu_backward.default(x, x),
            aten.add_.Tensor(x, x),
            aten._softmax.default(x, 0, False),
        )
        aten.gather.default(x, 0, i)
        aten.max_pool2d_with_indices_backward.default(x[None], x[None], [1, 1], [1, 1], [0, 0], [1, 1], False, i[None])
        aten.div.Tensor_mode(i, i, rounding_mode="floor")
        aten.linalg_cholesky_ex.default(x, check_errors=True)
        return safe

    traced = capture(f, torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.int64))
    raising = [node for node in traced.graph.graph.nodes if may_raise(node)]
    names = [str(node.target).split(".")[1] for node in raising]
    assert names == ["gather", "max_pool2d_with_indices_backward", "div", "linalg_cholesky_ex"]
