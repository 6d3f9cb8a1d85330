"""Tests of minidynamo/autograd/functional/outputs.py: the outputs and the memory that outputs share."""

import pytest
import torch

import minidynamo
from minidynamo.errors import BackendError
from tests.autograd.programs import assert_same, compile_program, graphs, inputs, intermediate_inputs, mixed_inputs

SHARING = {
    "input": lambda x, y: (x, x * y),
    "view_of_input": lambda x, y: (x[1:3], x * y),
    "split_of_input": lambda x, y: (*x.split(2), y * 1),
    "detached_view": lambda x, y: (x[1].detach(), y * 2),
    "output_and_view": lambda x, y: ((z := x * y), z[1:3], z.t()),
    "unbind": lambda x, y: (x * y).unbind(0),
    "detached_only": lambda x, y: ((z := (x * y).detach()), z[0]),
    "integers": lambda x, y: ((z := (x * y).long()), z[1], x.argmax(-1), x > y),
    "constants": lambda x, y: (x * y, None, 3, "text", 2.5),
    "new": lambda x, y: (torch.zeros(3), torch.arange(4), x * y),
    "expanded": lambda x, y: (x[0].sum().expand(3, 4), y * 1),
    "permuted": lambda x, y: ((x * y).t().sin(), x.t() * y.t()),
    "channels_last": lambda x, y: (x.view(1, 1, 4, 5).to(memory_format=torch.channels_last) * 2, y * 1),
    "hidden_base": lambda x, y: torch.nn.functional.linear(x, y).unflatten(1, (2, 2)).unbind(1),
}


SHAPES = ((4, 5), (4, 5))
MAKERS = {
    "inputs": inputs(*SHAPES),
    "intermediate": intermediate_inputs(*SHAPES),
    "data": inputs(*SHAPES, grad=False),
    "mixed": mixed_inputs((SHAPES[0], "data"), (SHAPES[1], "leaf")),
}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", SHARING)
def test_outputs_share_memory_and_history_as_in_eager(name, make):
    """Covers inputs of several kinds; end_to_end/autograd/test_aliasing.py has more programs."""
    assert_same(SHARING[name], MAKERS[make])


def test_views_of_inputs_have_the_input_as_base():
    x = torch.randn(4, 5)
    from_graph = graphs(lambda x: (x[1:3].t(), x * 2), [x]).signature
    assert [plan.origin for plan in from_graph.outputs] == ["input", "graph"]
    view = x
    for step in from_graph.outputs[0].steps:
        view = step.apply(view)
    assert view._base is x and torch.equal(view, x[1:3].t())


def test_a_view_follows_an_input_with_another_storage_offset():
    whole = torch.randn(8, 5)
    call = compile_program(lambda x: (x[1:3], x * 2), [whole[:4]])
    view, _ = call([whole[4:]])
    assert torch.equal(view, whole[5:7]) and view.untyped_storage()._cdata == whole.untyped_storage()._cdata


def test_the_graph_returns_one_tensor_per_memory():
    made = graphs(lambda x: ((z := x * 2).t(), z, z[0], z.detach()), [torch.randn(3, 3, requires_grad=True)])
    assert made.signature.results == 1 and made.signature.graph.positions == (0,)
    assert [plan.detach for plan in made.signature.outputs] == [False, False, False, True]


VIEWS_OF_VIEWS = {
    "of a view of an input": lambda x: ((v := x[1]), v[None]),
    "of a view": lambda x: ((v := (x * 2)[1]), v[None]),
    "beside what it is of": lambda x: ((y := x * 2), (v := y[1]), v[None]),
    "in front of it": lambda x: ((v := (x * 2)[1])[None], v),
    "of several": lambda x: ((v := x.t()), (w := v[1]), w[1:], v[0]),
    "of one of a list": lambda x: (*(vs := (x * 2).unbind(0)), vs[1][1:]),
    "of one behind a write": lambda x: ((v := (y := x * 2)[1])[None], v, y.mul_(2)),
    "detached": lambda x: ((d := x.detach()), d[0], d[0][1:]),
    "of what is detached": lambda x: (x.detach()[0], (x * 2).detach()[0]),
    "of one that is detached": lambda x: ((d := x.detach())[0], d.t()),
    "detached last": lambda x: (x[0].detach(), (x * 2)[0].data),
    "from inside of inference mode": lambda x: torch.inference_mode()(lambda: (x.t(), x[0]))(),
    "of data": lambda x: ((d := x.data)[0], d[1], x.data),
}


def properties_of(results, x):
    """Returns torch's properties of results, before and after a backward that adds the gradients of all results."""
    results = [*results, x]
    places = {id(value): place for place, value in enumerate(results)}
    properties = [
        (v.requires_grad, v._version, v._is_view(), places.get(id(v._base), v._base is None)) for v in results
    ]
    same_base = [one._base is other._base for one in results for other in results]
    wanted = [value for value in results if value.requires_grad]
    for value in wanted:
        value.retain_grad()
    if wanted:
        sum((value * (place + 1)).sum() for place, value in enumerate(wanted)).backward()
    return properties, same_base, [value.grad for value in wanted]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", VIEWS_OF_VIEWS)
def test_views_are_views_of_what_they_are_in_eager(name, requires_grad, dynamic):
    program = VIEWS_OF_VIEWS[name]
    compiled = minidynamo.compile(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    found = []
    for run in (program, compiled):
        x = torch.arange(12.0).reshape(3, 4).requires_grad_(requires_grad)
        found.append(properties_of(run(x), x))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    "view", [lambda t: t.expand(2, 3), lambda t: t.expand(2, 3).T, lambda t: t[1:], lambda t: t[::2]]
)
@pytest.mark.parametrize("make", [lambda x: torch.tensor([1.0, 2.0, 3.0]), lambda x: x + torch.tensor([1.0, 2.0, 3.0])])
def test_views_of_what_the_program_makes_lie_where_they_do_in_eager(make, view):
    def program(x):
        return view(make(x))

    compiled = minidynamo.compile(program, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        made, expected = compiled(torch.zeros(3)), program(torch.zeros(3))
        assert torch.equal(made, expected) and made.stride() == expected.stride()
        assert made.storage_offset() == expected.storage_offset()
        assert made._base.shape == expected._base.shape
        made.detach()[0].fill_(7)  # the next call does not see the write


def test_separate_histories_in_one_memory_are_refused():
    def program(x):
        y = x * 2
        return y.sin_(), y.detach().requires_grad_()

    with pytest.raises(BackendError) as caught:
        graphs(program, [torch.randn(3, requires_grad=True)])
    assert caught.value.code in ("MD404", "MD401")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.exp()[:, 1].add_(1),
        lambda x: x.exp()[2].mul_(2),
        lambda x: x.exp().split(2)[1].t().sin_(),
        lambda x: x.exp().view(-1).add_(1),
    ],
    ids=["column", "row", "part", "whole"],
)
def test_views_that_were_written_lie_where_they_do_in_eager(function):
    x = torch.rand(4, 5)
    (made,) = compile_program(lambda x: (function(x),), [x])([x])
    expected = function(x)
    assert torch.equal(made, expected)
    for fact in (torch.Tensor.stride, torch.Tensor.storage_offset, lambda t: t.untyped_storage().nbytes()):
        assert fact(made) == fact(expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y.sum(0).reshape(1, -1)[0],
        lambda y: y.sum(0).view(-1),
        lambda y: y.exp().t().t(),
        lambda y: y.clone()[:],
        lambda y: (y * 2).sum(1),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_a_view_of_a_whole_result_is_a_view(function, inference):
    facts = []
    for call in (function, minidynamo.compile(function, backend="aot_eager")):
        with torch.inference_mode() if inference else torch.no_grad():
            made = call(torch.ones(2, 3, requires_grad=True))
            made.add_(1)
        base = made._base
        counts = [] if inference else [made._version, None if base is None else base._version]
        facts.append((made._is_view(), base is None, made.is_leaf, made.output_nr, made.stride(), counts))
    assert facts[0] == facts[1]


FILLED = {
    "arange": lambda: torch.arange(3),
    "eye": lambda: torch.eye(3),
    "linspace": lambda: torch.linspace(0, 1, 4),
    "ones": lambda: torch.ones(3),
    "randperm": lambda: torch.randperm(3),
    "hann_window": lambda: torch.hann_window(5),
    "written": lambda: torch.ones(3).mul_(2),
    "viewed": lambda: torch.arange(4).view(2, 2),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("name", FILLED)
def test_what_is_made_of_nothing_counts_writes_as_in_eager(name, backend):
    compiled = minidynamo.compile(FILLED[name], backend=backend, fullgraph=True)
    assert compiled()._version == FILLED[name]()._version


STRIDES = {
    "written": lambda x, y: x.clone().mul_(y),
    "dropout": lambda x, y: torch.nn.functional.dropout(x.clone(), inplace=True),
    "smooth loss": lambda x, y: torch.nn.functional.smooth_l1_loss(
        y, x.transpose(0, 2).contiguous().transpose(0, 2), reduction="none"
    ),
    "loss of logits": lambda x, y: torch.nn.functional.binary_cross_entropy_with_logits(y, x, reduction="none"),
}


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("name", STRIDES)
def test_results_have_the_strides_of_what_the_program_calls(name, backend):
    x, y = torch.rand(1, 4, 3).transpose(0, 1), torch.rand(4, 1, 3, requires_grad=True)
    expected, made = (f(x, y) for f in (STRIDES[name], minidynamo.compile(STRIDES[name], backend=backend)))
    assert (made.stride(0), made.stride(2)) == (expected.stride(0), expected.stride(2)) == (3, 1)
    assert made._version == expected._version and not made._is_view() and made.requires_grad == expected.requires_grad
    if made.requires_grad:
        (gradient,), (wanted,) = (torch.autograd.grad(value.sum(), y) for value in (made, expected))
        torch.testing.assert_close(gradient, wanted)
