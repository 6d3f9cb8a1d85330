"""Tests of minidynamo/autograd/partition/minimum_cut.py: the choice between saving and recomputing."""

import cProfile

import torch
import torch.nn.functional as F

from minidynamo.autograd.functional.joint_graph import Forward, Joint
from minidynamo.autograd.partition.partition import partition
from minidynamo.config import config
from tests.autograd.programs import compile_program, graphs, module_program, targets
from tests.autograd.test_aot import Block


def saved(program, args):
    return [value.name for value in graphs(program, args).signature.saved]


def ones(*shape):
    return torch.ones(shape, requires_grad=True)


def test_inputs_are_saved_for_free():
    assert saved(lambda x, w: (x @ w,), [ones(3, 4), ones(4, 2)]) == ["arg0", "arg1"]


def test_cheap_values_are_computed_again_from_inputs_that_eager_keeps_too():
    def program(x, y):
        a = (x + y) * 2 - x
        return (a.sin() + x * y,)

    assert saved(program, [ones(3), ones(3)]) == ["arg0", "arg1"]
    with config.patch(recompute=False):
        assert saved(program, [ones(3), ones(3)]) == ["arg0", "arg1", "sub"]


def test_inputs_and_results_that_eager_does_not_keep_are_left_to_the_caller():
    def program(x, w):
        a = x + 1
        return a * 2, a.sin(), x.view(-1).sigmoid() @ w

    assert saved(program, [ones(3), ones(3)]) == ["arg1", "add", "sigmoid"]
    with config.patch(activation_budget=0.5):  # then the caller may not write to the results
        assert "arg0" in saved(program, [ones(3), ones(3)])


def test_expensive_values_are_saved():
    def program(x, w):
        return (torch.tan(x @ w) * x.sum(),)

    made = graphs(program, [ones(3, 3), ones(3, 3)]).signature.saved
    by_op = {value.op: value for value in made}
    assert "aten.tan.default" in by_op and "aten.mm.default" not in by_op
    assert by_op["aten.tan.default"].reason == "too expensive to recompute"
    assert by_op["input"].reason.startswith("input")
    assert by_op["aten.tan.default"].bytes == 36


def test_views_of_one_tensor_cost_one_tensor():
    def program(x, w):
        q, k, v = (x @ w).chunk(3, -1)
        return ((q * k).tan() * v,)

    made = graphs(program, [ones(4, 4), ones(4, 12)]).signature.saved
    assert sorted(value.op for value in made) == ["aten.mm.default", "aten.tan.default", "input", "input"]


def test_activations_are_computed_again_from_what_is_kept():
    def program(x, w, v):
        return (F.gelu(x @ w) @ v,)

    made = graphs(program, [ones(3, 3)] * 3).signature.saved
    assert [value.op for value in made if value.op != "input"] == ["aten.mm.default"]


def test_activations_are_not_computed_from_one_another():
    def program(x):
        for _ in range(4):
            x = x.sigmoid() * 2
        return (x,)

    made = graphs(program, [ones(3)])
    assert len([t for t in targets(made.backward) if t == "aten.sigmoid.default"]) <= 2
    assert len([value for value in made.signature.saved if value.op != "input"]) >= 2


def test_dropout_keeps_a_mask_of_one_byte_per_element():
    made = graphs(lambda x: (F.dropout(x * 2, 0.5),), [ones(50)]).signature.saved
    assert [(value.dtype, value.bytes) for value in made if value.op != "input"] == [(torch.bool, 50)]


def test_random_values_are_saved_and_never_drawn_again():
    made = graphs(lambda x: (F.dropout(x.sin(), 0.5),), [ones(50)])
    assert "aten.bernoulli.p" in targets(made.forward)
    assert not [t for t in targets(made.backward) if "bernoulli" in t or "rand" in t]


def test_a_comparison_is_kept_rather_than_what_was_compared():
    def program(x, w):
        a = x @ w
        return (torch.where(a > 0, a, 0.1 * a),)

    made = graphs(program, [ones(8, 8), ones(8, 8)]).signature.saved
    assert [value.dtype for value in made if value.op != "input"] == [torch.bool]


def test_an_overwritten_input_is_copied_before_it_is_saved():
    w = torch.ones(3)

    def program(x, w):
        y = x * w.clone()
        w.add_(1)
        return (y,)

    made = graphs(program, [ones(3), w]).signature.saved
    assert [value.reason for value in made if "overwrites" in value.reason] or all(v.op != "input" for v in made)
    x = ones(3)
    (y,) = compile_program(program, [x, w])([x, w])
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones(3)) and torch.equal(w, torch.full((3,), 2.0))


def description():
    """Returns all decisions of the partition of a block, as text; `tests/end_to_end/surroundings/test_hash_seeds.py`
    compares the texts of two processes."""
    program, values = module_program(Block())
    made = graphs(program, [torch.ones(2, 5, 16, requires_grad=True), *values()[0]])
    return f"{made.signature.saved}{made.forward.code}{made.backward.code}"


def calls_of_partition(rounds):
    """Returns the size of a joint graph, and the number of Python calls of its partition."""

    def program(x, w):
        for _ in range(rounds):
            x = F.relu(x @ w) + x.sin() * 0.5
        return (x.sum(),)

    made = graphs(program, [ones(4, 4), ones(4, 4)])
    joint = made.partition.saved[0].graph
    inputs = [n for n in joint.nodes if n.op == "placeholder"]
    network_inputs = [n for n in inputs if not n.name.startswith("tangents")]
    tangents = [n for n in inputs if n.name.startswith("tangents")]
    result = next(n for n in joint.nodes if n.name.startswith("sum_"))
    gradients = [n for n in joint.nodes if not n.users and n is not result]
    forward = Forward(graph=joint, inputs=network_inputs, results=[result])
    with cProfile.Profile() as profile:
        partition(Joint(forward=forward, tangents=tangents, gradients=gradients))
    return len(joint.nodes), sum(entry.callcount for entry in profile.getstats())


def test_work_grows_with_the_graph_not_with_its_square():
    size, calls = calls_of_partition(15)
    larger, more_calls = calls_of_partition(60)
    assert larger > 900 and more_calls / calls < 1.5 * larger / size
