import pytest
import torch

import minidynamo
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Local
from minidynamo.guards.tensors import facts_of
from minidynamo.tracer.graph.arguments import NotInGraph
from minidynamo.tracer.graph.fake_tensors import CallFailed
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.containers import ListVariable, TupleVariable
from minidynamo.variables.objects import OpaqueVariable
from minidynamo.variables.tensors import TensorVariable


@pytest.fixture
def graph():
    return OutputGraph(lambda: None)


def tensor(graph, value, name="x"):
    return graph.inputs.tensor(value, Local(name))


def test_results_are_tracked_one_by_one(graph):
    x = tensor(graph, torch.ones(2, 3))
    values = graph.emit(torch.max, [x, ConstantVariable(1)], {})
    assert isinstance(values, TupleVariable) and values.cls is torch.return_types.max
    assert [item.fake.dtype for item in values.items] == [torch.float32, torch.int64]
    assert isinstance(graph.emit("split", [x, ConstantVariable(1)], {}), TupleVariable)


def test_constants_leave_no_node(graph):
    x = tensor(graph, torch.ones(2, 3))
    size = graph.emit("size", [x], {})
    assert size.cls is torch.Size and [item.value for item in size.items] == [2, 3]
    assert [node.op for node in graph.graph.nodes] == ["placeholder"]


def test_a_written_tensor_keeps_its_tracker(graph):
    x = tensor(graph, torch.ones(2))
    assert graph.emit("add_", [x, ConstantVariable(1)], {}) is x
    assert list(graph.graph.nodes)[-1].meta["mutates"]
    assert graph.emit("contiguous", [x], {}) is x


def test_facts_are_guarded_on_first_use(graph):
    value = torch.ones(2)
    x = tensor(graph, value)
    assert not graph.guards
    graph.use(x)
    graph.use(x)
    (guard,) = graph.guards
    assert guard.kind is GuardKind.TENSOR and guard.expected == facts_of(value)


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(2, 3).t(),
        torch.ones(3).expand(2, 3),
        torch.ones(2, requires_grad=True),
        torch.ones(2, requires_grad=True) * 1,
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, dtype=torch.int8),
        torch.ones(2, dtype=torch.complex64, requires_grad=True) * 1,
        torch.ones(0, 2),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.dtype}-{value.requires_grad}-{value.is_leaf}",
)
def test_fake_inputs_have_the_facts_of_real_ones(graph, value):
    fake = tensor(graph, value).fake
    for name in ("dtype", "device", "shape", "requires_grad", "is_leaf"):
        assert getattr(fake, name) == getattr(value, name), name
    assert fake.stride() == value.stride()
    assert isinstance(fake, torch.nn.Parameter) == isinstance(value, torch.nn.Parameter)


def test_what_a_graph_cannot_hold(graph):
    x = tensor(graph, torch.ones(2))
    with pytest.raises(NotInGraph, match="object"):
        graph.emit(torch.add, [x, OpaqueVariable(object())], {})
    with pytest.raises(CallFailed) as caught:
        graph.emit(torch.add, [x, tensor(graph, torch.ones(3), "y")], {})
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert graph.emit(torch.cat, [ListVariable([x, x])], {}).fake.shape == (4,)


def test_one_list_placeholder_with_items(graph):
    value = [torch.ones(2), torch.zeros(2)]
    variable = ListVariable([], source=Local("xs"))
    variable.items = graph.inputs.list_of_tensors(value, variable, {})
    variable.original = tuple(variable.items)
    result = graph.emit(torch.add, variable.items, {})
    assert isinstance(result, TensorVariable)
    module, inputs = graph.finish([result], [])
    assert torch.equal(module(value)[0], torch.ones(2)) and [i.variable for i in inputs] == [variable]
    assert [type(fake) for fake in inputs[0].node.meta["example_value"]] == [type(result.fake)] * 2


def test_tracing_draws_no_random_numbers(graph):
    before = torch.get_rng_state()
    x = tensor(graph, torch.ones(2))
    graph.emit(torch.nn.functional.dropout, [x], {})
    graph.emit(torch.randn, [ConstantVariable(3)], {})
    assert torch.equal(before, torch.get_rng_state())


def test_a_call_that_raises_on_fake_tensors_logs_nothing(logged):
    def f(a, b):
        return a @ b

    compiled = minidynamo.compile(f, backend="eager")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        compiled(torch.ones(2, 3), torch.ones(2, 3))
    assert not logged
