"""Graphs from the cache run like compiled graphs; graphs that cannot be stored, or are damaged, are compiled."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import types
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import minidynamo
from examples.models import ConvNet, Transformer
from minidynamo.codegen import stored
from minidynamo.config import config
from minidynamo.core.events import MinidynamoNotice, forget_notices, on_event
from minidynamo.graph_cache import files
from minidynamo.testing import assert_same_as_eager
from tests.custom_functions import Doubled

pytestmark = pytest.mark.cpp


@pytest.fixture(autouse=True)
def cache(tmp_path):
    with config.patch(cache_dir=str(tmp_path / "cache"), graph_cache=True):
        yield tmp_path / "cache"


@pytest.fixture
def events():
    seen: list[tuple[str, str]] = []
    stop = on_event(lambda e: seen.append((e.name, e.data.get("reason", ""))) if e.kind == "cache" else None)
    yield seen
    stop()


def names(events):
    found = [name for name, _ in events]
    events.clear()
    return found


def pointwise(x, y):
    return (x * y).sin() + 1


def padded(x, y):
    return functional.pad(x, (0, 1)).sum(0) * y.shape[0] + x.shape[0] / 2, (x @ y.t()).softmax(-1)


def halves(x, y):
    return (x.view(x.shape[0] // 2, 2, -1) * 2).sum(1), y.sum()


def counts(x, y):
    n = x.shape[0]
    return y.cos() + (x + n / 4).sum(), x.new_zeros(n // 2 + 1, n + 3).cos() - n * 3


def gradients(function, *inputs, **how):
    """Returns results and gradients of a freshly compiled function."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    compiled = minidynamo.compile(function, **how)
    results = compiled(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    differentiable = [r for r in results if r.requires_grad]
    torch.autograd.backward(differentiable, [torch.ones_like(r) for r in differentiable])
    made = [*results, *(leaf.grad for leaf in leaves)]
    minidynamo.reset(compiled)
    return made


def test_a_second_compile_finds_the_graph(events):
    x, y = torch.randn(2, 4, 4)
    compiled = minidynamo.compile(pointwise)
    with torch.no_grad():
        first = compiled(x, y)
        assert names(events) == ["miss", "store"]
        compiled.reset()
        assert torch.equal(compiled(x, y), first)
    assert names(events) == ["hit"]
    assert (compiled.stats.cache_hits, compiled.stats.cache_misses) == (1, 0)
    assert compiled.stats.seconds_by_phase.get("codegen") is None
    assert [entry.hits for entry in files.entries()] == [1]


def test_training_graphs_are_kept_before_anybody_differentiates_them(events):
    x, y = torch.randn(2, 4, 4, requires_grad=True)
    compiled = minidynamo.compile(pointwise)
    first = compiled(x, y)
    assert names(events) == ["miss", "store"]
    compiled.reset()
    again = compiled(x, y)
    assert names(events) == ["hit"] and torch.equal(again, first)
    assert compiled.stats.seconds_by_phase.get("autograd") is None
    found = torch.autograd.grad(again.sum(), (x, y))
    assert names(events) == ["store"]
    assert all(map(torch.equal, found, torch.autograd.grad(pointwise(x, y).sum(), (x, y))))
    assert "test_stored_graphs.py" in compiled.code("kernel").rpartition("backward")[2]
    compiled.reset()
    compiled(x, y).sum().backward()
    assert names(events) == ["hit"]
    assert files.entries()[0].hits == 2


def test_parts_of_backward_are_kept_as_the_whole_is(events):
    x, y = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    ones = torch.ones(4, 4)
    wanted = torch.autograd.grad(pointwise(x, y), (x, y), ones)
    compiled = minidynamo.compile(pointwise)

    def ask(*asked):
        found = torch.autograd.grad(compiled(x, y), [(x, y)[i] for i in asked], ones)
        assert all(torch.equal(one, wanted[i]) for one, i in zip(found, asked, strict=True))
        return names(events)

    assert ask(0) == ["miss", "store", "store"]
    for asked, found in (((0, 1), ["hit", "store"]), ((1,), ["hit", "store"]), ((0,), ["hit"]), ((1,), ["hit"])):
        compiled.reset()
        assert ask(*asked) == found
        assert ask(*asked) == []
    (entry,) = files.entries()
    assert len(files.read(entry.name)["stages"]) == 4
    files.write(entry.name, {**files.read(entry.name), "backward": "nonsense", "stages": first_two(entry)})
    compiled.reset()
    assert ask(1) == ["hit", "skip"]


def first_two(entry):
    """Returns the compiled graphs of an entry without partial backward graphs."""
    stages = files.read(entry.name)["stages"]
    return {stage: stages[stage] for stage in ("forward", "backward")}


def test_each_process_is_told_that_there_is_no_compiler(events, tmp_path):
    x, y = torch.randn(2, 4, 4)
    compiled = minidynamo.compile(pointwise)
    with config.patch(cxx=str(tmp_path / "g++")):
        for found in (["miss", "store"], ["hit"]):
            forget_notices()
            compiled.reset()
            with pytest.warns(MinidynamoNotice, match=r"MD501 no C\+\+ compiler was found"):
                assert torch.equal(compiled(x, y), pointwise(x, y))
            assert names(events) == found


def test_a_process_that_only_runs_forward_leaves_what_another_stored(events):
    x, y = torch.randn(2, 4, 4, requires_grad=True)
    one, other = minidynamo.compile(pointwise), minidynamo.compile(lambda x, y: pointwise(x, y))
    exists = files.exists
    with pytest.MonkeyPatch.context() as patch:  # the second finishes between the first one's lookup and write
        patch.setattr(files, "exists", lambda name: one(x, y).backward(torch.ones(4, 4)) or exists(name))
        patch.setattr(files, "read", lambda name: None)
        other(x, y)
    (entry,) = files.entries()
    assert files.read(entry.name)["stages"].keys() == {"forward", "backward"}


@pytest.mark.parametrize("program", [pointwise, padded, halves, counts], ids=lambda program: program.__name__)
def test_backward_graphs_for_every_size_are_compiled_by_the_next_process(program, events):
    def run(compiled, rows):
        torch.manual_seed(rows)
        leaves = torch.randn(2, rows, 4, requires_grad=True)
        results = compiled(*leaves)
        return leaves, results if isinstance(results, torch.Tensor) else results[0]

    compiled = minidynamo.compile(program, dynamic=True)
    run(compiled, 6)
    assert names(events) == ["miss", "store"]
    compiled.reset()
    leaves, made = run(compiled, 8)
    guards = compiled.guards()
    found = torch.autograd.grad(made.sum(), leaves, allow_unused=True)
    assert names(events) == ["hit", "store"] and compiled.guards() == guards
    assert found[0] is not None
    for rows in (8, 10, 6):
        (one, made), (other, wanted) = run(compiled, rows), run(program, rows)
        grads = (torch.autograd.grad(z.sum(), t, allow_unused=True) for z, t in ((made, one), (wanted, other)))
        for mine, eager in zip(*grads, strict=True):
            torch.testing.assert_close(mine, eager)
    assert compiled.stats.compiles == 1


def test_other_shapes_and_modes_are_other_graphs(events):
    compiled = minidynamo.compile(pointwise)
    with torch.no_grad():
        compiled(*torch.randn(2, 4, 4))
        compiled(*torch.randn(2, 4, 5))
        with torch.autocast("cpu", torch.bfloat16):
            compiled(*torch.randn(2, 4, 4))
    with config.patch(fuse=False), torch.no_grad():
        compiled(*torch.randn(2, 4, 4))
    assert names(events).count("miss") == 4


def mutates(x, y):
    x.mul_(2)
    return x.t() @ y, x[1:], y.sum()


def many(x, y):
    a, b = torch.split(functional.layer_norm(x @ y, (4,)), 2)
    return a.exp(), b.t(), (x > 0).float().mean(), y


def constants(x, y):
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + y + torch.tensor(0.5)


def recomputes(x, y):
    return checkpoint(lambda a: (a @ y).sin().exp(), x, use_reentrant=False) * 2


def draws_again(x, y):
    return checkpoint(lambda a: functional.dropout((a @ y).repeat(20, 20), 0.5).sin() / 400, x, use_reentrant=False) * 2


def no_grad_inside(x, y):
    with torch.no_grad():
        scale = (x * y).sum()
    return x * scale


def attends(x, y):
    return functional.scaled_dot_product_attention(x[None, None], y[None, None], x[None, None])


PROGRAMS = [pointwise, mutates, many, constants, recomputes, draws_again, no_grad_inside, attends]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
def test_programs_from_the_cache_do_what_eager_does(program, grad, events):
    def inputs():
        torch.manual_seed(0)
        x, y = torch.randn(2, 4, 4)
        if not grad:
            return x, y
        x.requires_grad_()
        return (x * 1, y.requires_grad_()) if program is mutates else (x, y.requires_grad_())

    for expected in ("miss", "hit"):
        minidynamo.reset()
        with contextlib.nullcontext() if grad else torch.no_grad():
            assert_same_as_eager(program, inputs, backend="native")
        assert expected in names(events), program


@pytest.mark.parametrize("make", [ConvNet, Transformer])
def test_models_from_the_cache_train_as_they_do_without_it(make, events):
    images, classes = torch.rand(8, 1, 8, 8), torch.arange(8)

    def train():
        torch.manual_seed(0)
        model = minidynamo.compile(make())
        losses = []
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            loss = functional.cross_entropy(model(images), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    first = train()
    assert names(events) == ["miss", "store", "store"]
    assert train() == first
    assert names(events) == ["hit"]


def test_code_and_saved_values_are_shown_with_the_users_lines(events):
    x, y = torch.randn(2, 4, 4, requires_grad=True)
    compiled = minidynamo.compile(pointwise)
    compiled(x, y).sum().backward()
    first = {kind: compiled.code(kind) for kind in ("aten", "kernel", "host")}
    compiled.reset()
    compiled(x, y).sum().backward()
    assert names(events)[-1] == "hit"
    for kind, text in first.items():
        again = compiled.code(kind)
        assert [line for line in again.splitlines() if "/" not in line] == [
            line for line in text.splitlines() if "/" not in line
        ]
        assert "test_stored_graphs.py" in again


def closes_over(x, y):
    return Doubled.apply(x) + y


def test_a_custom_function_is_not_kept(events):
    result = gradients(closes_over, *torch.randn(2, 4))
    assert torch.equal(result[1], torch.full((4,), 2.0))
    assert ("skip" in names(events)) and files.entries() == []


def test_the_reason_for_not_keeping_is_told(events):
    gradients(closes_over, *torch.randn(2, 4))
    assert any("Doubled" in reason for name, reason in events if name == "skip")


def test_it_can_be_switched_off(events):
    with config.patch(graph_cache=False), torch.no_grad():
        minidynamo.compile(pointwise)(*torch.randn(2, 4, 4))
    assert events == [] and files.entries() == []


def entry_path() -> Path:
    (entry,) = files.entries()
    return entry.path


X, Y = torch.randn(2, 4, 4)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_entry_is_compiled_again(cache, data):
    shutil.rmtree(cache / "graphs", ignore_errors=True)
    expected = gradients(pointwise, X, Y)
    raw = bytearray(entry_path().read_bytes())
    if data.draw(st.booleans(), label="truncate"):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    entry_path().write_bytes(raw)
    forget_notices()
    with pytest.warns(MinidynamoNotice, match="MD601"):
        again = gradients(pointwise, X, Y)
    for one, other in zip(expected, again, strict=True):
        assert torch.equal(one, other)


def damages(form):
    """Entries whose file is intact but whose content is wrong: each part omitted or replaced."""
    for key in form:
        yield {k: v for k, v in form.items() if k != key}
        for other in (None, 3, [], {}, "text"):
            yield {**form, key: other}


def used_as_they_are(damaged):
    """Counts the damaged entries that were used without a warning; results are always right."""
    harmless = 0
    expected = [pointwise(X, Y), *torch.autograd.grad(pointwise(x := X.clone().requires_grad_(), Y).sum(), x)]
    for form in damaged:
        files.write(files.entries()[0].name, form)
        forget_notices()
        with warnings.catch_warnings(record=True) as notices:
            warnings.simplefilter("always")
            again = gradients(pointwise, X, Y)
        harmless += not notices
        for one, other in zip(expected, again):
            torch.testing.assert_close(one, other)
    return harmless


def test_a_whole_file_with_nonsense_in_it_is_compiled_again():
    gradients(pointwise, X, Y)
    content = files.read(files.entries()[0].name)
    unread = ("description", "backward")  # read by people only; read by partial backward graphs only
    read = {key: value for key, value in content.items() if key not in unread}
    forms = [*damages(read), [], 3, *({**content, "stages": d} for d in damages(content["stages"]))]
    assert used_as_they_are(forms) == 2  # no "decisions" here; backward is recompiled if omitted


def test_a_whole_file_with_nonsense_for_a_backward_graph_is_compiled_again():
    compiled = minidynamo.compile(pointwise)
    compiled(X.clone().requires_grad_(), Y.clone().requires_grad_())
    minidynamo.reset()
    content = files.read(files.entries()[0].name)
    nodes = content["backward"]
    forms = [None, 3, {}, "text", [], nodes[:-1], nodes[1:], [3, *nodes], [[*nodes[0][:5], {"fake": 3}, None], *nodes]]
    assert used_as_they_are([{**content, "backward": form} for form in forms]) == 0


def test_an_entry_of_another_graph_under_this_name_is_refused():
    gradients(pointwise, X, Y)
    (entry,) = files.entries()
    content = files.read(entry.name)
    files.write(entry.name, {**content, "key": content["key"].replace("sin", "cos")})
    with pytest.warns(MinidynamoNotice, match="another graph"):
        gradients(pointwise, X, Y)


def test_a_library_that_is_gone_is_built_from_the_entry(cache, events):
    expected = gradients(pointwise, X, Y)
    shutil.rmtree(cache / "kernels")
    names(events)
    again = gradients(pointwise, X, Y)
    assert names(events) == ["hit"]
    assert all(map(torch.equal, expected, again))


@pytest.mark.parametrize("what", ["compiler", "cpu", "torch", "minidynamo"])
def test_another_environment_compiles_again_and_is_told_why(what, events):
    gradients(pointwise, X, Y)
    (entry,) = files.entries()
    content = files.read(entry.name)
    lines = [
        f"  {what}: something else" if line.startswith(f"  {what}: ") else line for line in content["key"].splitlines()
    ]
    program, _ = entry.name.split("-")
    files.write(f"{program}-00000000", {**content, "key": "\n".join(lines) + "\n"})
    entry.path.unlink()
    events.clear()
    gradients(pointwise, X, Y)
    name, reason = events[0]
    assert name == "miss" and f"- {what}: something else" in reason and f"+ {what}: " in reason


def test_a_read_only_folder_is_read(events, monkeypatch):
    gradients(pointwise, X, Y)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.os, "utime", refuse)
    monkeypatch.setattr(files, "write_bytes", refuse)
    events.clear()
    gradients(pointwise, X, Y)
    assert names(events) == ["hit"]


def test_a_folder_that_cannot_be_written_is_no_obstacle(cache):
    cache.mkdir()
    (cache / "graphs").write_text("in the way")
    with pytest.warns(MinidynamoNotice, match="MD602"):
        again = gradients(pointwise, X, Y)
    with config.patch(graph_cache=False):
        assert all(map(torch.equal, gradients(pointwise, X, Y), again))


def test_a_full_disk_is_no_obstacle(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_bytes", full)
    with pytest.warns(MinidynamoNotice, match="MD602.*"):
        gradients(pointwise, X, Y)


PROCESS = """
import json, sys
import torch, minidynamo
from minidynamo.events import on_event

seen = []
stop = on_event(lambda e: seen.append(e.name) if e.kind == "cache" else None)

@minidynamo.compile
def f(x, y):
    return torch.softmax(x @ y, -1).sin()

torch.manual_seed(0)
x, y = torch.randn(2, 8, 8, requires_grad=True)
z = f(x, y)
(gx,) = torch.autograd.grad(z.sum(), x)
stop()
print(json.dumps([seen, z.tolist(), gx.tolist()]))
"""


def start(cache, script, **variables):
    environment = {**os.environ, "MINIDYNAMO_CACHE_DIR": str(cache), "MINIDYNAMO_GRAPH_CACHE": "1", **variables}
    return subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process):
    with process:
        out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    return json.loads(out)


def test_processes_share_the_cache_whatever_their_hash_seed(cache, capsys, monkeypatch):
    """Two concurrent processes compile or find the same graph; a third process, this one, with another seed, finds the
    graph."""
    both = [start(cache, PROCESS, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    first, second = map(finish, both)
    monkeypatch.setenv("RANK", "7")
    exec(PROCESS, {"__name__": "__main__"})
    third = json.loads(capsys.readouterr().out)
    assert first[1:] == second[1:] == third[1:]
    assert third[0] == ["hit"]
    assert len(files.entries()) == 1


def test_threads_share_the_cache(events):
    # Functions of one code object would share a single compile.
    codes = [pointwise.__code__.replace(co_name=f"f{i}") for i in range(4)]
    compiled = [minidynamo.compile(types.FunctionType(code, pointwise.__globals__)) for code in codes]
    results = []

    def call(function):
        with torch.no_grad():
            results.append(function(X, Y))

    threads = [threading.Thread(target=call, args=(function,)) for function in compiled]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(torch.equal(results[0], other) for other in results)
    found = names(events)
    assert found.count("hit") + found.count("miss") == 4 and found.count("hit") >= 1


def test_modules_of_containers_are_found_by_their_structure(events):
    def make():
        return minidynamo.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))

    x = torch.randn(3, 4)
    for expected in (["miss", "store", "store"], ["hit"]):
        make()(x).sum().backward()
        assert names(events) == expected


@pytest.mark.parametrize("program", [pointwise, padded, halves, counts], ids=lambda program: program.__name__)
@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
def test_graphs_for_every_size_are_kept(program, grad, events):
    """The third and fourth run use other sizes than the run that wrote the entry."""

    def run(compiled, function, rows):
        torch.manual_seed(rows)
        x, y = torch.randn(2, rows, 4, requires_grad=grad)
        found = compiled(x, y)
        expected = function(x, y)
        for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True):
            torch.testing.assert_close(one, other)
        if grad:
            loss = (found if isinstance(found, torch.Tensor) else found[0]).sum()
            wanted = (expected if isinstance(expected, torch.Tensor) else expected[0]).sum()
            (one,), (other,) = torch.autograd.grad(loss, x), torch.autograd.grad(wanted, x)
            torch.testing.assert_close(one, other)

    compiled = minidynamo.compile(program, dynamic=True)
    run(compiled, program, 6)
    assert names(events) == ["miss", *["store"] * (1 + grad)]
    compiled.reset()
    for rows in (8, 10, 6):
        run(compiled, program, rows)
    assert names(events) == ["hit"]
    assert compiled.stats.compiles == 1


def test_what_compiling_decided_on_sizes_is_decided_again(events):
    """Covers a size that only a later stage specialized: a cached graph must not be used for other sizes."""
    compiled = minidynamo.compile(halves, dynamic=True)
    with torch.no_grad():
        compiled(torch.randn(6, 4), torch.randn(3, 4))
        first = compiled.guards()
        compiled.reset()
        compiled(torch.randn(8, 4), torch.randn(5, 4))
    assert names(events)[-1] == "hit"

    def conditions(text):
        return sorted(line.split("#")[0].strip() for line in text.splitlines())

    assert conditions(compiled.guards()) == conditions(first)


def scaled_by(x, scale):
    return x * scale + 1


def test_numbers_that_vary_are_inputs_of_stored_graphs(events):
    compiled = minidynamo.compile(scaled_by)
    x = torch.randn(4)
    with torch.no_grad():
        for scale in (0.5, 0.25, 0.125):
            torch.testing.assert_close(compiled(x, scale), x * scale + 1)
        made = names(events).count("store")
        compiled.reset()
        for scale in (0.5, 0.75, 0.3, 0.1):
            torch.testing.assert_close(compiled(x, scale), x * scale + 1)
    assert made == 2 and names(events) == ["hit", "hit"]


def test_each_part_of_an_entry_is_written_once(monkeypatch):
    written = []
    write = stored.write_graph
    monkeypatch.setattr(
        stored, "write_graph", lambda compiled, codec: written.append(compiled.program.name) or write(compiled, codec)
    )
    minidynamo.compile(lambda x: x.sin().sum())(torch.ones(3, requires_grad=True)).backward()
    assert written == ["forward", "backward"]
