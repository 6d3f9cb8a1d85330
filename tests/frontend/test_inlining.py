"""Short bodies as statements of a dispatcher: names, memory, errors, dropped entries."""

import re
import types
import weakref

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.codegen.runtime.host_text import HostText
from minidynamo.frontend.inlining import inlined
from minidynamo.graph.boxed_text import BoxedText, Call, Pack, load
from minidynamo.testing import assert_same_as_eager

pytestmark = pytest.mark.cpp


def is_inlined(f) -> bool:
    text = f.code("dispatch")
    return re.search(r"= _?body\d", text) is not None and re.search(r"return _?body\d", text) is None


def native(f):
    return minidynamo.compile(f, backend="native")


def test_a_short_body_runs_in_the_dispatcher():
    @native
    def f(x, y):
        return torch.relu(x + y) * 2, x

    x, y = torch.randn(8), torch.randn(8)
    for _ in range(3):
        found, same = f(x, y)
        assert torch.equal(found, torch.relu(x + y) * 2) and same is x
    assert is_inlined(f) and f.stats.compiles == 1


def test_parameters_may_be_called_like_names_of_the_texts():
    def f(x, x_, x__, mul, mul_, out0, fits, body0, args_, explain_, error_, float32):
        return (x + x_ + x__ + mul + mul_ + out0) * (fits + body0 + args_ + explain_ + error_ + float32)

    arguments = [torch.randn(8) for _ in range(12)]
    assert_same_as_eager(
        f, lambda: tuple(torch.randn(8) for _ in range(12)), backend="native", calls=3, rtol=1e-6, atol=1e-6
    )
    compiled = native(f)
    compiled(*arguments)
    assert is_inlined(compiled)


HOST = ("""y = combined(x, float("inf"), x=1, text='x y', other=[x == x])  # x""", "del x")
RESIDUAL = (Pack("args", "a"), "del a, b", Call("graph", "args", "out0, out1, out2, = "), "return out0")


def body(residual=RESIDUAL, host=HOST, parameters=("a", "b"), **options) -> types.FunctionType:
    graph = HostText("test", "args", BoxedText(("x",), host, "(y, y, None)"), **options).load({"combined": max})
    text = BoxedText(parameters, residual)
    lines = [f"{', '.join(parameters)} = boxed", "boxed.clear()", *map(str, residual)]
    source = "\n    ".join(["def f(boxed):", *lines])
    return load("residual", "test", source, text, {"graph": graph}, "f")


def test_names_are_replaced_but_no_literals_attributes_and_keywords():
    made = body()
    found = inlined(made, ("a", "b"))
    assert found is not None and found.names == ("combined_",) and found.values(made) == (max,)
    assert found.lines == (
        "x_, = a,",
        "del a, b",
        """y_ = combined_(x_, float("inf"), x=1, text='x y', other=[x_ == x_])  # x""",
        "del x_",
        "out0_, out1_, out2_, = (y_, y_, None)",
        "del y_",
        "return out0_",
    )


@pytest.mark.parametrize(
    "made",
    [
        body((Pack("args", "float"), *RESIDUAL[2:]), parameters=("float", "b")),  # the host program means the builtin
        body((*RESIDUAL[:3], "args = len(args)", "return out0")),
        body((*["x = 1"] * 30, *RESIDUAL)),
        body((*RESIDUAL[:3], "return 'an object'")),  # the code may have another object with this text
        body(receiver="hand_over"),
        body(host=(*["y = x"] * 30, *HOST)),
    ],
)
def test_other_forms_stay_functions(made):
    assert inlined(made, ("float", "b") if "float" in made.__code__.co_varnames else ("a", "b")) is None


def test_lists_are_unpacked_in_the_dispatcher():
    @native
    def f(xs, by):
        return xs[0] * xs[1] + xs[2], by * 2

    xs, by = [torch.randn(8) for _ in range(3)], {"by": torch.randn(8)}["by"]
    for _ in range(3):
        found, doubled = f(xs, by)
        torch.testing.assert_close(found, xs[0] * xs[1] + xs[2])
        assert torch.equal(doubled, by * 2) and len(xs) == 3
    assert is_inlined(f)


def test_a_donated_list_is_emptied():
    compiled = minidynamo.compile(lambda xs: xs[0] * 2 + xs[1], backend="native", steal=["xs"])
    for _ in range(3):
        xs = [torch.ones(8), torch.ones(8)]
        dead = weakref.ref(xs[0])
        assert compiled(xs).tolist() == [3.0] * 8 and not xs and dead() is None
    assert is_inlined(compiled)


def test_versions_of_a_function_are_inlined_next_to_each_other():
    @native
    def f(x, n):
        return x * n + 1

    programs = [(torch.randn(8), 2), (torch.randn(3, 4), 2), (torch.randn(8), "a" == "b"), (torch.randn(8).double(), 3)]
    for _ in range(3):
        for x, n in programs:
            assert torch.equal(f(x, n), x * n + 1)
    assert is_inlined(f) and f.code("dispatch").count("= body") == f.stats.compiles


def test_inputs_die_at_their_last_use():
    alive = []

    @native
    def f(x):
        y = torch.linalg.matrix_exp(x)
        return torch.linalg.matrix_exp(y), y

    def given() -> torch.Tensor:
        x = torch.randn(4, 4)
        alive.append(weakref.ref(x))
        return x

    for _ in range(2):
        f(given())
    assert is_inlined(f)
    assert all(reference() is None for reference in alive)
    lines = [line.strip() for line in f.code("dispatch").splitlines()]
    first = next(k for k, line in enumerate(lines) if "matrix_exp_(x_)" in line)
    assert "del x_" in lines[first + 1 : first + 3]


def test_an_error_of_a_kernel_names_the_users_line():
    @native
    def f(table, index):
        return table[index] * 2

    table = torch.randn(4)
    f(table, torch.tensor([0, 3]))
    assert is_inlined(f)
    with pytest.raises(IndexError, match="out of bounds") as info:
        f(table, torch.tensor([0, 4]))
    assert "return table[index] * 2" in "\n".join(info.value.__notes__)
    assert all("minidynamo" not in str(entry.path) for entry in info.traceback)


def test_code_of_a_dropped_entry_redispatches():
    @native
    def f(x):
        return x * 2

    x = torch.randn(8)
    f(x)
    old = types.FunctionType(f.__code__, f.__globals__)  # as in a thread that has just entered the function
    f.reset()
    assert f.stats.compiles == 0
    assert torch.equal(old(x), x * 2) and f.stats.compiles == 1


def test_equal_modules_use_their_own_tensors():
    modules = [native(nn.Linear(8, 8)) for _ in range(3)]
    x = torch.randn(2, 8)
    with torch.no_grad():
        for module in modules:
            for _ in range(2):
                torch.testing.assert_close(module(x), nn.functional.linear(x, module.weight, module.bias))


def test_other_functions_than_residual_programs_stay_functions():
    assert inlined(lambda boxed: boxed, ("x",)) is None
    assert inlined(len, ()) is None
