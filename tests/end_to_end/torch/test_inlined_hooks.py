"""Hooks for saved tensors that are inlined into graphs: their arguments, their times, and their results."""

from __future__ import annotations

import re

import pytest
import torch
from torch import fx, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import minidynamo
from benchmarks.memory import peak_bytes
from minidynamo import compat
from minidynamo.config import config
from minidynamo.core.events import MinidynamoNotice, on_event
from minidynamo.errors import InvalidHook, Unsupported
from minidynamo.testing import CompileCounter, no_recompile
from tests.end_to_end.programs import rows_of
from tests.pairs import pairs

BACKENDS = ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)]
MODES = ["donated", "no_static", "all"]


def to_half(x):
    return x.to(torch.float16)


def to_float(x):
    return x.to(torch.float32)


def halves():
    return fx.symbolic_trace(to_half), fx.symbolic_trace(to_float)


def larger():
    """Returns a lossy pair: gradients computed from unpacked tensors differ."""
    return fx.symbolic_trace(lambda x: x * 2), fx.symbolic_trace(lambda x: x * 3)


def filtering(mode):
    return config.patch(saved_tensors_hooks_filtering_mode=mode)


def g(x):
    return (x + 1).sin().exp()


def gradient(function, pair, x):
    x = x.detach().clone().requires_grad_()
    with saved_tensors_hooks(*pair):
        y = function(x)
    y.sum().backward()
    return x.grad


def aten(f, stage):
    """Returns the text of the ATen graph of a stage."""
    return re.findall(rf"# ATen graph of {stage}:.*\n((?:(?!# ).*\n|\s+#.*\n)*)", f.code())[-1]


class Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x + 1
        ctx.save_for_backward(y)
        return y.sin().exp()

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y.cos() * y.sin().exp()


@pytest.mark.parametrize("backend", BACKENDS)
def test_HK_1_what_is_packed_is_an_output_of_forward_and_an_input_of_backward(backend):
    f = minidynamo.compile(lambda x: Saving.apply(x), backend=backend)
    made = gradient(f, halves(), torch.ones(3, 4))
    assert (made + 1.0331169).abs().max() < 1e-3
    assert re.search(r"add_hook_0: \"f16\[3, 4\]\".*\n(.*\n)*.*return \(exp, add_hook_0\)", aten(f, "forward"))
    backward = aten(f, "backward").splitlines()
    assert 'add_hook_0: "f16[3, 4]"' in backward[1]
    assert "_to_copy.default(add_hook_0, dtype = torch.float32)" in backward[3]
    (saved,) = f.saved()
    assert (saved.name, saved.dtype, saved.bytes) == ("add_hook_0", torch.float16, 24)
    assert "your hook has packed add into it, float32[3, 4]" in str(f.saved())
    assert "add_hook_0" in str(f.memory_plan())


@pytest.mark.parametrize("backend", BACKENDS)
def test_HK_2_a_hook_decides_for_each_saved_tensor_while_it_is_compiled(backend):
    calls = []

    @minidynamo.inlineable_hook
    def pack(x):
        calls.append(x.numel())
        return (x.dtype, x.half() if x.dtype == torch.float32 and x.numel() > 4 else x)

    @minidynamo.inlineable_hook
    def unpack(packed):
        dtype, x = packed
        return x.to(dtype)

    with filtering("all"):
        f = minidynamo.compile(g, backend=backend)
        made = gradient(f, (pack, unpack), torch.ones(3, 4))
        assert {saved.dtype for saved in f.saved()} == {torch.float16}
        assert torch.allclose(made, torch.full((3, 4), -1.0330521), rtol=0, atol=2e-7)
        traced = len(calls)
        with no_recompile():
            assert torch.equal(gradient(f, (pack, unpack), torch.ones(3, 4)), made)
        assert len(calls) == traced
        x = torch.ones(2, requires_grad=True)
        g(x).sum().backward()
        assert torch.allclose(gradient(f, (pack, unpack), torch.ones(2)), x.grad, rtol=1e-6)


def test_HK_2_one_graph_has_tensors_on_both_branches():
    def pack(x):
        return x.half() if x.numel() > 4 else x

    fx_pack = minidynamo.inlineable_hook(pack)
    fx_unpack = minidynamo.inlineable_hook(to_float)
    f = minidynamo.compile(lambda x: x.sin().exp().sum(0).sin().exp(), backend="aot_eager")
    with filtering("all"):
        gradient(f, (fx_pack, fx_unpack), torch.ones(3, 4))
    kinds = {(tuple(saved.shape), saved.dtype) for saved in f.saved()}
    assert kinds == {((3, 4), torch.float16), ((4,), torch.float32)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_HK_2_what_a_hook_decides_on_sizes_is_guarded(backend):
    pack = minidynamo.inlineable_hook(lambda x: x * 2 if x.numel() > 4 else x)
    hooks = pack, minidynamo.inlineable_hook(lambda x: x)
    with filtering("all"):
        f = minidynamo.compile(g, backend=backend, dynamic=True)
        for shape, compiles in (((3, 4), 1), ((2, 2), 2), ((5, 6), 2), ((2, 2), 2)):
            x = torch.rand(shape)
            assert torch.allclose(gradient(f, hooks, x), gradient(g, hooks, x), rtol=1e-5)
            assert f.stats.compiles == compiles


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{"activation_budget": 0.0}, {"recompute": False}])
def test_settings_do_not_change_what_hooks_see_in_mode_all(backend, options):
    with filtering("all"):
        f = minidynamo.compile(normalized, backend=backend, options=options)
        for mine, eager in zip(both(f, larger()), both(normalized, larger())):
            assert torch.allclose(mine, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("mode", "expected"), [("donated", 1), ("no_static", 6), ("all", 6)])
def test_HK_4_inputs_are_packed_in_some_modes_only(backend, mode, expected):
    with filtering(mode):
        f = minidynamo.compile(lambda x: x.sin(), backend=backend)
        made = gradient(f, larger(), torch.ones(3))
    assert torch.allclose(made, torch.full((3,), float(expected)).cos())
    assert torch.allclose(gradient(lambda x: x.sin(), larger(), torch.ones(3)), torch.full((3,), 6.0).cos())


def test_parameters_are_packed_in_mode_all_only():
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    for mode in ("all", "no_static", "donated"):
        with filtering(mode):
            f = minidynamo.compile(lambda x: layer(x), backend="aot_eager")
            made = gradient(f, larger(), x)
        expected = gradient(layer, larger(), x) if mode == "all" else torch.ones(2, 4) @ layer.weight
        assert torch.allclose(made, expected)


def wrapped_pair(user_cache_hash):
    """Graphs that call a custom function."""
    graph = fx.Graph()
    call = graph.call_function(to_half, (graph.placeholder("x"),))
    call.meta["is_wrapped"] = True
    if user_cache_hash is not None:
        call.meta["user_cache_hash"] = user_cache_hash
    graph.output(call)
    return fx.GraphModule({}, graph), fx.symbolic_trace(to_float)


def marked_pair(user_cache_hash):
    """Returns a pair of hooks, one of which would differ in a new process."""
    mark = minidynamo.inlineable_hook(user_cache_hash=user_cache_hash)
    return mark(lambda x: x.to(torch.float16)), fx.symbolic_trace(to_float)


@pytest.mark.cpp
@pytest.mark.parametrize("make", [wrapped_pair, marked_pair])
def test_HK_5_hooks_are_in_the_key_of_a_graph(tmp_path, make):
    seen = []
    stop = on_event(lambda event: seen.append(event.name) if event.kind == "cache" else None)

    def compiled(pair):
        seen.clear()
        f = minidynamo.compile(g, backend="native")
        made = gradient(f, pair, torch.ones(3, 4))
        minidynamo.reset(f)
        assert (made + 1.0331169).abs().max() < 1e-3
        return seen[0]

    try:
        with config.patch(cache_dir=str(tmp_path), graph_cache=True):
            assert [compiled(make(None)) for _ in range(2)] == ["skip", "skip"]
            assert [compiled(make(text)) for text in "AABA"] == ["miss", "hit", "miss", "hit"]
            assert [compiled(halves()) for _ in range(2)] == ["miss", "hit"]  # not stored by torch
            with filtering("all"):
                assert [compiled(halves()) for _ in range(2)] == ["miss", "hit"]
    finally:
        stop()


def chain(x, w):
    for _ in range(8):
        x = (x * w).sin()
    return x


def measured(function, pair):
    """Returns the peak in forward, the memory held afterwards, and the peak in backward, in mebibytes above the
    argument."""
    x, w, result = torch.rand(512, 512, requires_grad=True), torch.tensor(0.5), []

    def forward():
        if pair is None:
            result.append(function(x, w))
        else:
            with saved_tensors_hooks(*pair):
                result.append(function(x, w))

    def backward():
        result.pop().sum().backward()

    def step():
        forward()
        backward()
        x.grad = None

    step()
    peak = peak_bytes(forward)
    released = peak_bytes(backward)
    x.grad = None
    return peak / 2**20, released / 2**20, peak_bytes(step) / 2**20


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_HK_6_each_saved_tensor_is_packed_right_behind_its_last_use(backend, mode):
    with filtering(mode):
        f = minidynamo.compile(chain, backend=backend)
        forward, _, step = measured(f, halves())
        held = f.saved().bytes / 2**20
        assert forward <= 7 and step <= 8
        assert held <= 5
    calls = measured(minidynamo.compile(chain, backend=backend), (to_half, to_float))
    assert forward < calls[0] and step < calls[2]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("unpack", [lambda x: x[:1], lambda x: 3, lambda x: x.double(), lambda x: (x, x)])
def test_HK_7_what_unpack_returns_has_to_be_what_was_saved(backend, mode, unpack):
    f = minidynamo.compile(g, backend=backend)
    hooks = minidynamo.inlineable_hook(lambda x: x), minidynamo.inlineable_hook(unpack)
    with filtering(mode), pytest.raises(InvalidHook, match=r"the unpack hook .* it returns") as caught:
        gradient(f, hooks, torch.ones(3, 4))
    assert caught.value.code == "MD413" and isinstance(caught.value, TypeError)
    assert caught.value.diagnostic.where.source_line().strip() == "return (x + 1).sin().exp()"


@pytest.mark.parametrize("backend", BACKENDS)
def test_HK_8_sizes_are_saved_as_numbers(backend):
    pack = minidynamo.inlineable_hook(lambda x: (x.flatten(), x.shape[0], 7))
    unpack = minidynamo.inlineable_hook(lambda packed: packed[0].view(packed[1], -1) * (packed[2] - 6))
    f = minidynamo.compile(g, backend=backend, dynamic=True)
    for shape in ((3, 4), (5, 2), (6, 7)):
        made = gradient(f, (pack, unpack), torch.ones(shape))
        assert torch.allclose(made, torch.full(shape, -1.0331169), atol=1e-6)
    assert f.stats.compiles == 1
    assert re.search(r"return \(exp, .*add_hook_0, .*add_hook_1\)", aten(f, "forward"))
    assert re.search(r"add_hook_1: \"Sym\(\w+\)\", tangents_0", aten(f, "backward"))
    assert "add_hook_0" in [saved.name for saved in f.saved()]


# The same values as in eager


def inside_checkpoint(x, w):
    y = (x * w).sin()
    return checkpoint(lambda a: (a * 2).sin().exp(), y, use_reentrant=False).cos()


def normalized(x, w):
    return nn.functional.gelu(nn.functional.layer_norm(x @ w, (4,), w[0]))


class Programs:
    def in_place(x, w):
        """Copies in hooks hold the values from before the write; autograd does not notice the later writes."""
        x = x * 1
        x.mul_(w)
        y = x.sin()
        x.add_(1)
        return (y * x).exp()

    def several(x, w):
        y = (x @ w).softmax(-1)
        return y.exp() + (y.t() @ x).sin() + torch.cat([x[:2].sin(), w[2:].cos()])

    def branching(x, w):
        y = (x * w).sin()
        z = minidynamo.cond(y.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (y,))
        return (z * w).exp()

    def custom(x, w):
        return Saving.apply(x * w).tanh()


PROGRAMS = [*rows_of(Programs), normalized]


def both(function, pair, seed=0):
    torch.manual_seed(seed)
    x, w = torch.rand(4, 4, requires_grad=True), torch.rand(4, 4, requires_grad=True)
    with saved_tensors_hooks(*pair):
        y = function(x, w)
    y.sum().backward()
    return [y, x.grad, w.grad]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.filterwarnings("ignore:MD401")
def test_in_mode_all_gradients_are_those_of_eager_with_lossy_hooks_too(backend, program):
    with filtering("all"):
        f = minidynamo.compile(program, backend=backend)
        for mine, eager in zip(both(f, larger()), both(program, larger())):
            assert torch.allclose(mine, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("mode, backend", pairs(MODES, BACKENDS, full=["donated"], always=["aot_eager"]))
@pytest.mark.filterwarnings("ignore:MD401")
def test_with_hooks_that_lose_nothing_gradients_are_the_same(backend, program, mode):
    @minidynamo.inlineable_hook
    def pack(x):
        return {"data": x.t().contiguous() if x.dim() == 2 else x.double(), "kind": (x.dtype, x.shape)}

    @minidynamo.inlineable_hook
    def unpack(packed):
        x, (dtype, shape) = packed["data"], packed["kind"]
        return x.t() if len(shape) == 2 else x.to(dtype)

    with filtering(mode):
        f = minidynamo.compile(program, backend=backend)
        for mine, eager in zip(both(f, (pack, unpack)), both(program, (torch.clone, torch.clone))):
            assert torch.allclose(mine, eager, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_has_hooks_of_its_own():
    with (
        filtering("all"),
        pytest.warns(MinidynamoNotice, match="MD414 .*test_inlined_hooks.py:.* in inside_checkpoint"),
    ):
        f = minidynamo.compile(inside_checkpoint, backend="aot_eager")
        mine = both(f, larger())
    assert all(map(torch.equal, mine, both(inside_checkpoint, larger())))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_an_argument_that_is_written_to(backend, mode):
    def written(h, w):
        h.mul_(w)
        return h.sin() * w

    def run(function):
        x, w = torch.full((3,), 0.5, requires_grad=True), torch.full((3,), 0.7, requires_grad=True)
        with saved_tensors_hooks(*halves()):
            h = x * 1
            y = function(h, w)
        y.sum().backward()
        return [y, h, x.grad, w.grad]

    with filtering(mode):
        for mine, eager in zip(run(minidynamo.compile(written, backend=backend)), run(written)):
            assert torch.allclose(mine, eager, atol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_are_differentiated_see_what_was_unpacked(backend):
    def twice(function, pair):
        x = torch.full((3,), 0.4, requires_grad=True)
        with saved_tensors_hooks(*pair):
            y = function(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return [first, *torch.autograd.grad(first.sum(), x)]

    f = minidynamo.compile(g, backend=backend)
    for mine, eager in zip(twice(f, halves()), twice(g, (torch.clone, torch.clone))):
        assert torch.allclose(mine, eager, atol=2e-3)
    assert "add_hook_0" in str(f.saved())
    with filtering("all"), pytest.raises(Unsupported, match="MD403"):
        twice(minidynamo.compile(g, backend=backend), halves())


def test_results_of_which_some_are_used():
    program = lambda x, w: ((x * w).sin().exp(), (w * 2).cos() * x)

    def run(function, used, pair):
        x, w = torch.rand(4, generator=torch.manual_seed(0), requires_grad=True), torch.full((4,), 0.3).requires_grad_()
        with saved_tensors_hooks(*pair):
            results = function(x, w)
        made = [torch.autograd.grad(results[i].sum(), [x, w], retain_graph=True) for i in used]
        return [gradient for gradients in made for gradient in gradients]

    f = minidynamo.compile(program, backend="aot_eager")
    for used in ([0], [1], [0, 1], [1, 0, 1]):
        for mine, eager in zip(run(f, used, halves()), run(program, used, (torch.clone, torch.clone))):
            assert torch.allclose(mine, eager, atol=2e-3)


def test_rows_of_gradients_at_once():
    f = minidynamo.compile(g, backend="aot_eager")
    x = torch.full((3,), 0.4, requires_grad=True)
    with saved_tensors_hooks(*halves()):
        y = f(x)
    (rows,) = torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)
    assert torch.allclose(rows, torch.diag((x + 1).cos() * g(x)), atol=2e-3)


# Conditions for inlining hooks into graphs


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", MODES)
def test_what_hooks_keep_is_not_compared_with_eager_without_them(mode):
    with filtering(mode):
        f = minidynamo.compile(lambda x, w: (x @ w).softmax(-1), backend="aot_eager")
        x, w = torch.rand(64, 64, requires_grad=True), torch.rand(64, 64, requires_grad=True)
        with saved_tensors_hooks(minidynamo.inlineable_hook(lambda x: x.double()), fx.symbolic_trace(to_float)):
            f(x, w).sum().backward()
    assert (torch.float64 in {saved.dtype for saved in f.saved()}) == (mode != "donated")


def test_hooks_are_not_applied_twice_and_are_there_behind_the_graph():
    calls = []

    @minidynamo.inlineable_hook
    def pack(x):
        calls.append(type(x).__name__)
        return x * 2

    @minidynamo.inlineable_hook
    def unpack(x):
        return x / 2

    f = minidynamo.compile(g, backend="aot_eager")
    x = torch.ones(3, requires_grad=True)
    with saved_tensors_hooks(pack, unpack):
        y = f(x)
        assert "Tensor" not in calls
        z = y.exp()
        assert calls[-1] == "Tensor"
    z.sum().backward()
    leaf = torch.ones(3, requires_grad=True)
    g(leaf).exp().sum().backward()
    assert torch.allclose(x.grad, leaf.grad)


def test_hooks_are_back_after_an_error():
    program = lambda x, i: (x + 1).sin().exp()[i]
    f, seen = minidynamo.compile(program, backend="aot_eager"), []
    x, i = torch.ones(3, requires_grad=True), torch.tensor([0, 1])
    pair = halves()
    with saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t), saved_tensors_hooks(*pair):
        f(x, i)
        with pytest.raises((IndexError, RuntimeError)):
            f(x, torch.tensor([7, 1]))
        assert compat.top_saved_tensor_hooks(False) == pair
    assert compat.top_saved_tensor_hooks(False) is None
    assert not seen


@pytest.mark.parametrize("backend", ["eager", CompileCounter()])
def test_other_backends_have_hooks_that_run_as_calls(backend):
    f = minidynamo.compile(g, backend=backend)
    assert torch.equal(gradient(f, larger(), torch.ones(3)), gradient(g, larger(), torch.ones(3)))


def test_marked_functions_match_by_identity():
    counter = []
    f = minidynamo.compile(g, backend="aot_eager")
    first = [minidynamo.inlineable_hook(lambda x, k=k: x * 1) for k in range(2)]
    second = [minidynamo.inlineable_hook(lambda x, k=k: x * 1) for k in range(2)]
    plain = [lambda x: x, lambda x: x]
    for pair in (first, first, second, first, plain, (first[0], plain[1])):
        before = f.stats.compiles
        gradient(f, pair, torch.ones(3))
        counter.append(f.stats.compiles - before)
    assert counter == [1, 0, 1, 0, 1, 0]
