"""Values written to inputs are computed in the memory of the input where possible. Needs no device."""

import torch

from minidynamo.codegen.ir.loops import Extern, Kernel, Store
from minidynamo.codegen.lowering.graph import lower_graph
from minidynamo.codegen.memory.input_placement import place_in_inputs, without_store
from minidynamo.codegen.memory.plan import Allocate, Overwrite
from minidynamo.codegen.memory.planner import plan_memory
from minidynamo.codegen.memory.report import memory_plan
from minidynamo.codegen.scheduling.schedule import schedule
from minidynamo.graph.marks import IN_PLACE
from tests.codegen.graphs import kernels, trace

aten = torch.ops.aten
copy = aten.copy_.default
H, G = torch.ones(4, 4), torch.ones(4, 4) * 2


def scheduled(function, *args, twins=None):
    """Returns the program and schedule of a function that writes to its inputs, as functional graphs represent such
    writes."""
    graph = trace(function, *args)
    for node in graph.graph.nodes:
        node.meta[IN_PLACE] = (twins or {}).get(node.target)
        while node.target is copy and node.args[0].op != "placeholder":
            node.args = (node.args[0].args[0], node.args[1])
    return schedule(lower_graph(graph), join=True, verify=True)


def placed(function, *args, **twins):
    """Returns the schedule and the placements, by the input whose memory each value gets."""
    program, steps = scheduled(function, *args, **twins)
    return place_in_inputs(steps, program)


def test_what_torch_reads_between_two_writes_lies_in_the_input():
    def program(h, g):
        first = copy(h, h * 2)
        made = first @ g
        copy(h, first + 1)
        return made

    steps, places = placed(program, H, G)
    assert places == {"mul": "h_1"}
    assert [type(step) for step in steps] == [Kernel, Extern, Kernel]


def test_a_store_of_what_lies_there_is_left_out():
    def program(h, g):
        new = copy(h, (h * g).exp())
        return new.sum(), new.sum(0)

    steps, places = placed(program, torch.ones(64, 64), torch.ones(64))
    assert places == {"exp": "h_1"}
    first = next(step for step in steps if isinstance(step, Kernel))
    assert [b.name for b in first.writes if b.name in ("exp", "h_1")] == ["exp"]
    assert "h_1" in [b.name for b in first.reads]


def test_not_where_something_reads_what_the_input_held():
    def elsewhere(h, g):
        made = h * 2
        other = made @ g + h
        copy(h, other)
        return other.sum()

    def at_another_place(h, g):
        first = copy(h, h.t() * 2)
        made = first @ g
        copy(h, first + 1)
        return made

    def behind(h, g):
        new = h * 2
        copy(h, new)
        made = new @ g
        copy(h, new + 1)
        return made @ new

    assert "mul" not in placed(elsewhere, H, G)[1]
    assert placed(at_another_place, H, G)[1] == {}
    assert placed(behind, H, G)[1] == {}


def test_not_before_the_program_writes():
    """An error between the write and the read would find new data."""

    def program(h, g):
        made = (h * 2).exp()
        other = made @ g
        copy(h, made)
        return other

    assert placed(program, H, G)[1] == {}


def test_not_what_is_returned_and_not_another_input():
    def returned(h, g):
        made = h * 2
        copy(h, made)
        return made, made @ g

    def swapped(h, g):
        kept = h.clone()
        copy(h, g)
        copy(g, kept)
        return ()

    assert placed(returned, H, G)[1] == {}
    assert "g_1" not in placed(swapped, H, G)[1]


def test_what_torch_fills_in_place_stays_in_the_input():
    def program(h, i):
        first = copy(h, h * 2)
        second = copy(h, first.cumsum(0))
        return copy(h, second.index_fill(0, i, 1.0)).t() @ h

    twins = {aten.cumsum.default: aten.cumsum_.default}
    given = H, torch.tensor([1])
    assert placed(program, *given, twins=twins)[1] == {"mul": "h_1", "cumsum": "mul", "index_fill": "cumsum"}
    assert placed(program, *given)[1] == {"mul": "h_1"}

    def unwritten(h, i):
        first = copy(h, h * 2)
        made = first.cumsum(0)
        copy(h, made + 1)
        return made.sum()

    assert placed(unwritten, *given, twins=twins)[1] == {"mul": "h_1"}


def test_the_host_program_names_the_input_and_allocates_nothing():
    def program(h, g):
        first = copy(h, (h.t() * 2).t())
        made = first.t() @ g
        copy(h, first + 1)
        return made

    loops, steps = scheduled(program, H, G)
    host = plan_memory(steps, loops, "test")
    (step,) = [step for step in host.steps if isinstance(step, Overwrite)]
    assert step.source == "h_1" and step.buffer.stride == (1, 4)
    assert not [step for step in host.steps if isinstance(step, Allocate)]
    described = memory_plan(host)
    assert described.peak_with_inputs(described.input_names) == 3 * 64
    assert [buffer.name for buffer in described.buffers] == ["h_1", "g_1", "mm"]


def test_results_that_torch_has_filled_count_as_new():
    program, steps = scheduled(lambda x: (x * 2).cumsum(0), H)
    assert plan_memory(steps, program, "test").steps[-1].versions_to_reset == ()
    program, steps = scheduled(lambda x: (x * 2).cumsum(0), H, twins={aten.cumsum.default: aten.cumsum_.default})
    assert plan_memory(steps, program, "test").steps[-1].versions_to_reset == ("cumsum",)


def test_a_kernel_without_one_of_its_stores():
    (kernel,) = kernels(lambda x: ((y := x.sin()) * 2, y.exp()), H)
    first, second = (buffer.name for buffer in kernel.writes)
    fewer = without_store(kernel, second)
    assert [b.name for b in fewer.writes] == [first] and fewer.reads == kernel.reads
    assert not any(isinstance(s, Store) and s.buffer == second for s in fewer.statements())
    assert all("exp" not in str(s.value) for s in fewer.statements())
    assert without_store(fewer, first).loops == ()
