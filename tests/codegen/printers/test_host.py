"""Host programs printed as Python: their text, their results, and their frees."""

import functools
import weakref
from dataclasses import replace

import pytest
import torch

from minidynamo.codegen.compile_graph import compile_graph
from minidynamo.codegen.ir.expr import Const, Op
from minidynamo.codegen.ir.index import Var
from minidynamo.codegen.ir.loops import Buffer, Extern, GetItem, Name, Store
from minidynamo.codegen.lowering.graph import lower_graph
from minidynamo.codegen.memory.plan import Allocate, Free, HandOver, HostProgram, Launch, Return, Reuse
from minidynamo.codegen.memory.planner import plan_memory
from minidynamo.codegen.printers.host import Calling, print_host
from minidynamo.codegen.scheduling.schedule import schedule
from tests.codegen.graphs import located, trace, trace_symbolic
from tests.codegen.printers import printer_cases as cases

aten = torch.ops.aten


def doubling(source: str, target: str, n: int = 8):
    """Returns a kernel target = source * 2, and an equivalent Python function."""
    i = Var("y0", n)
    value = Op("mul", (cases.load(source, i), Const(2.0, torch.float32)), torch.float32)
    kernel = cases.pointwise(
        "double", [cases.buffer(source, n)], [cases.buffer(target, n)], [i], Store(target, cases.at(i), value)
    )
    return kernel, lambda x, out: torch.mul(x, 2, out=out)


def load(program: HostProgram, launchers=None, calling: Calling = Calling.TENSORS):
    text, namespace = print_host(program, launchers or {}, calling)
    return text.load(namespace), text.source()


def test_every_kind_of_step(golden):
    kernel, double = doubling("x", "buf0")
    steps = (
        Free(("unused",)),
        Allocate(cases.buffer("buf0", 8)),
        Launch(kernel, ("x", "buf0")),
        Free(("x",)),
        Reuse(cases.buffer("buf1", 8), "buf0"),
        Extern("pair", aten.split.Tensor, (Name("buf1"), 4)),
        Free(("buf1",)),
        GetItem("low", "pair", 0),
        GetItem("high", "pair", 1),
        Free(("pair",)),
        Extern("joined", aten.cat.default, ((Name("high"), Name("low")), 0)),
        Extern("wide", aten._to_copy.default, (Name("joined"),), (("dtype", torch.float64),)),
        Extern("big", aten.full_like.default, (Name("low"), float("-inf")), (("device", torch.device("cpu")),)),
        Free(("low", "high", "joined")),
        HandOver("wide", 0),
        Return((Name("wide"), Name("big"), None, 3)),
    )
    program = HostProgram("every_step", ("x", "unused"), steps, (kernel,), ())
    call, source = load(program, {"double": double})
    golden(source, "codegen/host_every_step.py.txt")
    x = torch.arange(8.0)
    wide, big, nothing, three = call([x.clone(), torch.ones(1)])
    assert wide.tolist() == [8.0, 10.0, 12.0, 14.0, 0.0, 2.0, 4.0, 6.0] and wide.dtype is torch.float64
    assert big.tolist() == [float("-inf")] * 4 and nothing is None and three == 3
    handed = {}
    assert call([x, torch.ones(1)], handed.__setitem__)[0] is None and torch.equal(handed[0], wide)
    assert call._hands_over is True


def test_call_is_boxed_and_empties_its_list():
    program = HostProgram("identity", ("x",), (Return((Name("x"),)),), (), ())
    call, _ = load(program)
    box = [torch.ones(2)]
    assert call(box)[0].sum() == 2
    assert box == [] and call._boxed_call is True


def test_no_inputs():
    program = HostProgram("nothing", (), (Return(()),), (), ())
    assert load(program)[0]([]) == ()


def test_an_input_dies_behind_its_last_use():
    alive = []

    def probe(tensor):
        alive.append(ref() is not None)
        return tensor + 1

    steps = (
        Extern("y", probe, (Name("x"),)),
        Free(("x",)),
        Extern("z", probe, (Name("y"),)),
        Return((Name("z"),)),
    )
    call, _ = load(HostProgram("dies", ("x",), steps, (), ()))
    box = [torch.ones(3)]
    ref = weakref.ref(box[0])
    call(box)
    assert alive == [True, False]


def test_names_of_the_program_win_over_names_of_the_printer():
    kernel, double = doubling("args", "empty_cpu")
    steps = (
        Allocate(cases.buffer("empty_cpu", 8)),
        Launch(kernel, ("args", "empty_cpu")),
        Extern("aten_mul_Tensor", aten.mul.Tensor, (Name("empty_cpu"), Name("double"))),
        Return((Name("aten_mul_Tensor"),)),
    )
    program = HostProgram("names", ("args", "double"), steps, (kernel,), ())
    call, _ = load(program, {"double": double})
    assert call([torch.ones(8), torch.full((8,), 3.0)])[0].tolist() == [6.0] * 8


def test_constants_are_bound_and_tensors_are_passed():
    kernel, _ = doubling("table", "buf0")
    seen = []
    steps = (Allocate(cases.buffer("buf0", 8)), Launch(kernel, ("table", "buf0")), Return((Name("buf0"),)))
    table = torch.ones(8)
    program = HostProgram("constants", (), steps, (kernel,), (), constants={"table": table})
    call, _ = load(program, {"double": lambda *tensors: seen.append([*map(id, tensors)])}, Calling.IN_LIBRARY)
    (out,) = call([])
    assert seen == [[id(table), id(out)]]


def test_text_with_lines_of_the_user(golden):
    loops, steps = schedule(lower_graph(located()), join=True, verify=True)
    program = plan_memory(steps, loops, "located")
    text, _ = print_host(program, {k.name: functools.partial(len) for k in program.kernels}, Calling.IN_LIBRARY)
    golden(text.source(), "codegen/located.host.txt")


def test_strides_of_extern_results_are_those_of_the_graph():
    made = torch.arange(6.0).reshape(2, 3)
    layout = Buffer("made", (2, 3), (1, 2), torch.float32, made.device)
    steps = (Extern("made", lambda: made, (), layout=layout), Return((Name("made"),)))
    call, _ = load(HostProgram("strides", (), steps, (), ()))
    (result,) = call([])
    assert result.stride() == (1, 2)
    assert torch.equal(result, made)


@pytest.mark.parametrize("make", [trace, trace_symbolic])
def test_a_view_between_operators_is_created_without_an_operator(make):
    def scores(x, keys):
        return torch.mm(x, keys.t())

    x, keys = torch.rand(3, 200), torch.rand(50, 200)
    compiled = compile_graph(make(scores, x, keys), target="aten")
    assert "reinterpret(" in compiled.host.source()
    more = torch.rand(70, 200)
    for inputs in [(x, keys), (x, more)] if make is trace_symbolic else [(x, keys)]:
        assert torch.equal(compiled.call([*inputs])[0], scores(*inputs))


def test_writes_to_inputs_are_counted():
    kernel, double = doubling("x", "y")
    program = HostProgram("writes", ("x", "y"), (Launch(kernel, ("x", "y")), Return(())), (kernel,), ())
    call, source = load(program, {"double": double})
    assert "increment_version((y,))" in source
    x, y = torch.ones(8), torch.zeros(8)
    call([x, y])
    assert (x._version, y.tolist()) == (0, [2.0] * 8)
    assert y._version > 0


def test_a_program_on_a_gpu(golden):
    """The program reads the stream once, and kernels and allocations know their device."""
    gpu = torch.device("cuda", 0)
    kernel, _ = doubling("x", "buf0")
    kernel = replace(kernel, device=gpu)
    steps = (
        Allocate(replace(cases.buffer("buf0", 8), device=gpu)),
        Launch(kernel, ("x", "buf0")),
        Allocate(cases.buffer("buf1", 8)),
        Return((Name("buf0"), Name("buf1"))),
    )
    program = HostProgram("on_a_gpu", ("x",), steps, (kernel,), ())
    golden(
        print_host(program, {"double": functools.partial(len)}, Calling.ON_STREAM)[0].source(),
        "codegen/on_a_gpu.host.txt",
    )
