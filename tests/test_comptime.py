"""Callbacks that run while a function is captured: once, at their place, with access to the frame."""

from __future__ import annotations

import functools
import importlib
import sys
import time

import pytest
import torch

import minidynamo
from minidynamo import comptime
from minidynamo.errors import ComptimeError, Unsupported
from minidynamo.testing import CompileCounter

eager = functools.partial(minidynamo.compile, backend="eager")


def printed(capsys, fn, *args, calls=1, **keywords):
    """Returns the printed text of `calls` calls of the compiled function, and the function."""
    compiled = eager(fn, **keywords)
    for _ in range(calls):
        torch.testing.assert_close(compiled(*args), fn(*args))
    return capsys.readouterr().out, compiled


def on_locals(x):
    y = x * 2
    n = 3
    several = [x, y]
    d = {"a": 1, 2: (x,)}
    s = "q"
    comptime.print_locals()
    return y + n + len(several) + len(d) + len(s)


def test_both_imports_give_the_callable():
    assert importlib.import_module("minidynamo.comptime").comptime is comptime is minidynamo.comptime


def test_print_graph_shows_the_graph_so_far(capsys):
    def f(x):
        y = x * 2
        comptime.print_graph()
        return y + 3

    text, compiled = printed(capsys, f, torch.ones(2), calls=2)
    assert text.count("def forward") == 1 and "x * 2" in text and "+ 3" not in text
    assert compiled.stats.graphs == 1


def test_print_graph_can_name_the_users_lines(capsys):
    def f(x):
        y = x * 2
        comptime(lambda ctx: ctx.print_graph(verbose=True))
        return y + 3

    text, _ = printed(capsys, f, torch.ones(2))
    assert "y = x * 2" in text and "test_comptime.py" in text


def test_print_locals_in_the_order_of_binding(capsys):
    text, _ = printed(capsys, on_locals, torch.ones(2), calls=2)
    tensor = "Tensor(shape=(2,), dtype=torch.float32)"
    assert text.splitlines() == [
        f"x = {tensor}",
        f"y = {tensor}",
        "n = 3",
        f"several = [{tensor}, {tensor}]",
        "d = {'a': 1, 2: (" + tensor + ",)}",
        "s = 'q'",
    ]


def test_a_graph_break_on_request():
    def f(x):
        y = x + 1
        comptime.graph_break()
        return y * 2

    def g(x):
        y = x + 1
        comptime(lambda ctx: ctx.graph_break("for a reason"))
        return y * 2

    for fn, reason in ((f, "the program asks for it"), (g, "for a reason")):
        counter = CompileCounter()
        compiled = minidynamo.compile(fn, backend=counter)
        assert compiled(torch.ones(1)).item() == 4 and compiled(torch.ones(1)).item() == 4
        assert (counter.frame_count, compiled.stats.graph_breaks) == (2, 1)
        with pytest.raises(Unsupported, match=reason):
            eager(fn, fullgraph=True)(torch.ones(1))


def test_an_empty_callback_costs_nothing():
    counter = CompileCounter()

    def f(x):
        comptime(lambda ctx: None)
        return x + 1

    assert minidynamo.compile(f, backend=counter, fullgraph=True)(torch.ones(1)).item() == 2
    assert (counter.frame_count, counter.op_count) == (1, 1)


def test_as_a_decorator_with_free_variables(capsys):
    def f(x):
        z = 5
        w = x + z

        @comptime
        def callback(ctx):
            print(z, w, ctx.get_local("z").as_python_constant(), ctx.get_local("w").as_fake().size(0))

        assert callback is None
        return w

    compiled = eager(f)
    compiled(torch.ones(2)), compiled(torch.ones(2))
    assert capsys.readouterr().out == "5 Tensor(shape=(2,), dtype=torch.float32) 5 2\n"


def test_values_as_the_tracer_knows_them():
    seen = {}

    def f(x):
        y = x.double()
        n = [1, 2]

        @comptime
        def _(ctx):
            for name in ("y", "n"):
                variable = ctx.get_local(name)
                seen[name] = variable.is_proxy(), variable.python_type(), repr(variable)
            seen["targets"] = [node.target for node in ctx.graph().nodes if node.op.startswith("call")]
            seen["fake"] = ctx.get_local("y").as_fake()

        return y + sum(n)

    assert eager(f)(torch.ones(2)).tolist() == [4.0, 4.0]
    assert seen["y"] == (True, torch.Tensor, "Tensor(shape=(2,), dtype=torch.float64)")
    assert seen["n"] == (False, list, "[1, 2]")
    assert seen["targets"] == ["double"] and seen["fake"].dtype is torch.float64


def test_once_per_capture_and_again_at_a_recompile(capsys):
    def f(x):
        y = x + 1
        comptime(lambda ctx: print("before"))
        minidynamo.graph_break()
        comptime(lambda ctx: print("behind"))
        return y * 2

    text, compiled = printed(capsys, f, torch.ones(2), calls=3)
    assert text == "before\nbehind\n"
    compiled(torch.ones(3))
    assert capsys.readouterr().out == "before\nbehind\n"


def inner(x):
    k = 7
    comptime(lambda ctx: print(ctx.get_local("k"), ctx.parent().get_local("q"), ctx.get_local("q", stacklevel=1)))
    comptime.print_locals(1)
    return x + k


def test_the_calling_frame(capsys):
    def outer(x):
        q = 42
        return inner(x) + q

    text, _ = printed(capsys, outer, torch.ones(1))
    assert text.splitlines() == ["7 42 42", "x = Tensor(shape=(1,), dtype=torch.float32)", "q = 42"]


def test_where_nothing_is_captured(capsys):
    def f(x):
        comptime(lambda ctx: print("captured"), lambda: print("as written"))
        comptime.print_graph(), comptime.print_locals(), comptime.graph_break()
        return x

    f(torch.ones(1))
    assert capsys.readouterr().out == "as written\n"
    eager(f)(torch.ones(1))  # a frame without operations is captured as well
    assert capsys.readouterr().out.startswith("captured\n")


BAD = [
    (lambda ctx: ctx.print_locals(stacklevel=3), IndexError, "stacklevel=3"),
    (lambda ctx: ctx.get_local("x", stacklevel=-1), IndexError, "stacklevel=-1"),
    (lambda ctx: ctx.parent(), IndexError, "stacklevel=1"),
    (lambda ctx: ctx.get_local("nothing"), KeyError, "nothing"),
    (lambda ctx: ctx.get_local("n").as_fake(), TypeError, "needs a tensor, and this is 3"),
    (lambda ctx: ctx.get_local("x").as_python_constant(), TypeError, "not known while compiling"),
    (lambda ctx: 1 / 0, ZeroDivisionError, "division by zero"),
    (lambda: None, TypeError, "positional argument"),
]


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize(("callback", "cause", "says"), BAD)
def test_what_a_callback_raises_ends_the_compile(callback, cause, says, fullgraph):
    ran = []

    def f(x):
        n = 3
        ran.append(n)
        comptime(callback)
        return x + n

    compiled = eager(f, fullgraph=fullgraph)
    for _ in range(2):
        with pytest.raises(ComptimeError, match=says) as caught:
            compiled(torch.ones(1))
        assert type(caught.value.__cause__) is cause and cause.__name__ in str(caught.value)
        assert caught.value.code == "MD107" and ran == []
        assert caught.value.diagnostic.where.filename == __file__


def test_a_callback_may_handle_its_own_errors():
    seen = []

    def callback(ctx):
        try:
            ctx.parent()
        except IndexError as error:
            seen.append(str(error))

    def f(x):
        comptime(callback)
        return x + 1

    eager(f)(torch.ones(1))
    assert len(seen) == 1


def test_something_that_is_no_function():
    def f(x):
        comptime(3)
        return x + 1

    with pytest.raises(ComptimeError, match="needs a Python function with one argument, not 3"):
        eager(f)(torch.ones(1))


# Behaviour checks


def test_CT_1_the_graph_so_far_once(capsys):
    def f(x):
        y = x * 2
        comptime(lambda ctx: ctx.print_graph(verbose=False))
        return y + 3

    text, compiled = printed(capsys, f, torch.ones(2), calls=2)
    assert "mul = x * 2" in text and "+ 3" not in text and text.count("def forward") == 1
    assert compiled.stats.graphs == 1


def test_CT_2_locals(capsys):
    def f(x):
        y = x * 2
        n = 3
        l = [x, y]  # noqa: E741
        d = {"a": 1}
        s = "q"
        comptime.print_locals()
        return y + n + len(l) + len(d) + len(s)

    text, _ = printed(capsys, f, torch.ones(2))
    tensor = "Tensor(shape=(2,), dtype=torch.float32)"
    wanted = [f"x = {tensor}", f"y = {tensor}", "n = 3", f"l = [{tensor}, {tensor}]", "d = {'a': 1}", "s = 'q'"]
    assert text.splitlines() == wanted


def test_CT_2_classes_and_functions(capsys):
    def f(x):
        comptime.print([torch.nn.Linear, torch.sin, len, helper, dict])
        comptime.print(lambda value: value)
        return x + 1

    eager(f)(torch.ones(2))
    listed, nested = capsys.readouterr().out.splitlines()
    assert listed == repr([torch.nn.Linear, torch.sin, len, helper, dict])
    assert nested == "<function test_CT_2_classes_and_functions.<locals>.f.<locals>.<lambda>>"


def test_CT_5_a_symbolic_number_as_a_fake():
    seen = []

    def f(x):
        n = x.size(0)
        comptime(lambda ctx: seen.append(ctx.get_local("n").as_fake() * 2))
        return x + n

    compiled = eager(f, dynamic=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 4.0))
    assert isinstance(seen[0], torch.SymInt) and seen[0].node.hint == 6
    with pytest.raises(ComptimeError, match="as_fake"):
        eager(f, dynamic=False)(torch.ones(3))


def helper():
    """Is printed by its `repr`."""


def test_CT_3_bytecode_and_frames(capsys):
    def g(x):
        y = x * 2
        comptime.print_disas()
        comptime.print_bt()
        return y

    def a4(x):
        return g(x) + 1

    text, _ = printed(capsys, a4, torch.ones(2))
    code, _, frames = text.partition("  File ")
    assert code.count("-->") == 1 and "BINARY_OP" in code
    assert frames.index("in a4") < frames.index("return g(x) + 1") < frames.index("in g")
    assert frames.index("in g") < frames.index("comptime.print_bt()")


def test_CT_4_breaks():
    def f(x):
        y = x * 2
        comptime.graph_break()
        return y + 1

    def empty(x):
        comptime(lambda ctx: None)
        return x + 1

    compiled, whole = eager(f), eager(empty)
    compiled(torch.ones(2)), whole(torch.ones(2))
    assert (compiled.stats.graphs, whole.stats.graphs) == (2, 1)
    with pytest.raises(Unsupported):
        eager(f, fullgraph=True)(torch.ones(2))


def test_CT_5_static_sizes():
    def f(x):
        comptime.assert_static(x.size(0))
        return x + 1

    eager(f)(torch.ones(5))
    with pytest.raises(ComptimeError, match="AssertionError: expected static but got dynamic"):
        eager(f, dynamic=True)(torch.ones(5))

    def forced(x):
        comptime.force_static(x.size(0))
        comptime.assert_static(x.size(0))
        return x + 1

    for dynamic in (None, True):
        minidynamo.reset()
        compiled = eager(forced, dynamic=dynamic)
        for size in (4, 5, 6, 4):
            compiled(torch.ones(size))
        assert compiled.stats.graphs == 3

    def wrong(x):
        comptime.force_static(x)
        return x + 1

    with pytest.raises(ComptimeError, match="AssertionError"):
        eager(wrong)(torch.ones(2))


def test_looking_at_a_size_does_not_fix_it(capsys):
    def g(x, n):
        comptime.print(x.shape)
        comptime.print(n)
        comptime(lambda ctx: print(ctx.get_local("n").is_dynamic(), ctx.get_local("n").is_python_constant()))
        return x + n

    compiled = eager(g, dynamic=True)
    for size in (4, 5, 6):
        compiled(torch.ones(size, 3), size)
    assert compiled.stats.graphs == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["(s77, s27)", "s86", "True False"]


def test_CT_6_the_stack(capsys):
    def f(x):
        comptime.print_value_stack()
        return x + comptime.print_value_stack_and_return(x * 2)

    text, _ = printed(capsys, f, torch.ones(2))
    assert text == "- Tensor(shape=(2,), dtype=torch.float32)\n"


def test_CT_7_as_written_only_print_prints(capsys):
    begin = time.perf_counter()
    comptime(lambda ctx: print("captured"), lambda: print("fallback"))
    comptime.print("s")
    for convenience in (comptime.print_graph, comptime.print_guards, comptime.graph_break, comptime.breakpoint):
        convenience()
    for convenience in (comptime.print_disas, comptime.print_value_stack, comptime.print_locals, comptime.print_bt):
        convenience(stacklevel=7)
    comptime.assert_static(3), comptime.force_static(torch.ones(1))
    comptime.sleep(20)
    assert comptime.print_value_stack_and_return(5) == 5
    assert capsys.readouterr().out == "fallback\ns\n" and time.perf_counter() - begin < 10


def test_CT_8_values_and_proxies():
    counter, seen = CompileCounter(), []

    def f(x):
        y = x * 2

        def look(ctx):
            found = ctx.get_local("y")
            seen.extend((found.python_type(), found.is_proxy(), found.size(0), found.size()))
            found.as_proxy() + 4

        comptime(look)
        return y + 3

    compiled = minidynamo.compile(f, backend=counter)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert seen == [torch.Tensor, True, 2, (2,)] and counter.op_count == 3
    assert [node.target.__name__ for node in counter.graphs[0].graph.nodes if node.op == "call_function"].count(
        "add"
    ) == 2


def test_CT_9_without_operations_the_callback_runs_and_the_fallback_does_not():
    seen = []

    def f(x):
        comptime(lambda ctx: seen.append("ct"), lambda: seen.append("rt"))
        return x

    compiled = eager(f)
    compiled(torch.ones(1)), compiled(torch.ones(1))
    assert seen == ["ct"]


def test_CT_10_free_variables(capsys):
    def f(x):
        z = 5
        comptime(lambda ctx: print(z))
        return x + z

    assert printed(capsys, f, torch.ones(1))[0] == "5\n"


def test_guards_the_debugger_and_waiting(capsys, monkeypatch):
    def f(x, n):
        y = x * n
        comptime.print_guards()
        comptime.breakpoint()
        comptime.sleep(0.05)
        return y

    contexts = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: contexts.append(sys._getframe(1).f_locals["ctx"]))
    begin = time.perf_counter()
    text, _ = printed(capsys, f, torch.ones(2), 3)
    lines = [line for line in text.splitlines() if line]
    assert lines == sorted(lines) and any(line.startswith("value of `n`: 3") for line in lines)
    assert contexts[0].get_local is not None and time.perf_counter() - begin >= 0.05
