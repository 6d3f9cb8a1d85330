"""The peak of a graph whose operations run one by one."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from minidynamo.graph.marks import DIES, RETURNED, WRITTEN, marking
from minidynamo.memory.unfused_peak import peaks_of_operations

aten = torch.ops.aten
X = torch.rand(64, 64)
SIZE = 4 * 64 * 64


def traced(program):
    return make_fx(program, tracing_mode="fake")(X)


def peak_of_operations(gm, taken=False, held=False):
    return peaks_of_operations(gm)(taken, held)


def test_values_die_behind_their_last_reader():
    assert peak_of_operations(traced(lambda x: x.sin().cos().exp())) == 2 * SIZE
    assert peak_of_operations(traced(lambda x: (lambda y: y + y.cos().exp())(x.sin()))) == 3 * SIZE


def test_views_and_inputs_take_nothing():
    assert peak_of_operations(traced(lambda x: x.t()[1:])) == 0
    assert peak_of_operations(traced(lambda x: (x.sin().t()[1:], x.view(-1)))) == SIZE


def test_results_stay():
    assert peak_of_operations(traced(lambda x: (x.sin(), x.cos(), x.sum()))) == 2 * SIZE + 4


def test_results_are_gone_where_they_are_taken():
    assert peak_of_operations(traced(lambda x: (x.sin(), x.cos(), x.sum())), taken=True) == SIZE


def test_inputs_that_die_count():
    gm = traced(lambda x: x.sin().cos().exp())
    next(iter(gm.graph.nodes)).meta[DIES] = True
    assert peak_of_operations(gm) == 2 * SIZE
    assert peak_of_operations(traced(lambda x: x.sin().exp() * x)) == 2 * SIZE


def test_results_of_forward_that_are_held_do_not_count():
    gm = traced(lambda x: x.sin().exp())
    next(iter(gm.graph.nodes)).meta.update({DIES: True, RETURNED: True})
    assert peak_of_operations(gm) == 2 * SIZE and peak_of_operations(gm, held=True) == 2 * SIZE
    gm = traced(lambda x: x.sin())
    next(iter(gm.graph.nodes)).meta.update({DIES: True, RETURNED: True})
    assert peak_of_operations(gm) == 2 * SIZE and peak_of_operations(gm, held=True) == SIZE


def decomposed_peaks(split):
    """Returns peaks of a sine of a dying argument, decomposed by `split`: without marks of the decomposition, and with
    marks."""
    found = []
    for parts in ({aten.sin.default: split}, marking({aten.sin.default: split})):
        gm = make_fx(torch.sin, decomposition_table=parts, tracing_mode="fake")(X)
        next(iter(gm.graph.nodes)).meta[DIES] = True
        found.append(peak_of_operations(gm))
    return found


def test_parts_of_one_call_run_as_one():
    assert decomposed_peaks(lambda x: (x > 0).float()) == [SIZE + SIZE // 4, 2 * SIZE]  # the argument lives until then
    assert decomposed_peaks(lambda x: (x + 1) * (x + 2)) == [3 * SIZE, 2 * SIZE]  # without intermediates
    assert decomposed_peaks(lambda x: torch.zeros_like(x).masked_scatter(x > 0, x)) == [2 * SIZE + SIZE // 4, 2 * SIZE]


def test_what_is_put_into_zeros_takes_nothing():
    assert peak_of_operations(traced(lambda x: torch.zeros(64, 64).masked_scatter(x > 0, x))) == SIZE + 64 * 64
    assert peak_of_operations(traced(lambda x: x.masked_scatter(x > 0, x))) == SIZE + 64 * 64
    assert peak_of_operations(traced(lambda x: torch.zeros_like(x).select_scatter(x[0], 0, 1))) == SIZE
    assert peak_of_operations(traced(lambda x: x.sin().select_scatter(x[0], 0, 1))) == 2 * SIZE
    kept = traced(lambda x: ((y := torch.zeros(64, 64)), y.masked_scatter(x > 0, x)))
    assert peak_of_operations(kept) == 2 * SIZE + 64 * 64


def test_what_the_program_writes_in_place_takes_nothing():
    gm = traced(lambda x: (x @ x).sin().cos())
    for node in gm.graph.nodes:
        if node.name in ("sin", "cos"):
            node.meta[WRITTEN] = {0: 0}
    assert peak_of_operations(gm) == SIZE


def test_what_the_program_writes_to_a_part_of_an_input_takes_nothing():
    gm = traced(lambda x: torch.slice_scatter(x, x[:32].sin(), 0, 0, 32).sum())
    (whole,) = gm.graph.find_nodes(op="call_function", target=aten.slice_scatter.default)
    assert peak_of_operations(gm) == SIZE + SIZE // 2
    whole.meta[WRITTEN] = {0: 0}
    assert peak_of_operations(gm) == SIZE // 2


def test_what_an_operator_writes_to_an_argument_beside_its_results_takes_nothing():
    op = torch.ops.aten._native_batch_norm_legit_functional.default
    gm = traced(lambda x: op(x, None, None, x[0], x[1], True, 0.1, 1e-5)[0])
    (call,) = gm.graph.find_nodes(op="call_function", target=op)
    assert peak_of_operations(gm) == SIZE + 4 * 4 * 64
    call.meta[WRITTEN] = {3: 3, 4: 4}
    assert peak_of_operations(gm) == SIZE + 2 * 4 * 64


def test_autograd_adds_to_a_gradient_without_another_reader():
    def peak(program, backward):
        return peaks_of_operations(traced(program), backward=backward)(False, False)

    def added(x):
        return x.sin() + x

    def read_later(x):
        gradient = x.sin()
        return gradient + x, gradient

    assert peak(added, False) == 2 * SIZE and peak(added, True) == SIZE
    assert peak(lambda x: x + x.sin(), True) == SIZE
    assert peak(lambda x: x[:1].sin() + x, True) == SIZE + SIZE // 64
    assert peak(lambda x: x.t() + x, True) == SIZE
    assert peak(read_later, True) == 2 * SIZE
