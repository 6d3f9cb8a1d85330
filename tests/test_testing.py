from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.errors import ArgumentError
from minidynamo.testing import (
    AotEagerAndRecordGraphs,
    CompileCounter,
    CompileCounterWithBackend,
    EagerAndRecordGraphs,
    StorageWatch,
    assert_freed_before,
    assert_same_as_eager,
    no_recompile,
    normalize_gm,
    probe,
)


def f(x):
    return torch.relu(x) + 1


def vector():
    return torch.randn(4, requires_grad=True)


@pytest.mark.parametrize("make", [CompileCounter, EagerAndRecordGraphs, lambda: CompileCounterWithBackend("aot_eager")])
def test_counters_count_graphs_and_operations(make):
    counter = make()
    compiled = minidynamo.compile(f, backend=counter)
    x = vector()
    assert torch.equal(compiled(x), f(x))
    assert (counter.frame_count, counter.op_count, len(counter.graphs)) == (1, 2, 1)
    counter.clear()
    assert (counter.frame_count, counter.op_count, len(counter.graphs)) == (0, 0, 0)


def test_graphs_of_the_autograd_stage_are_recorded():
    recorder = AotEagerAndRecordGraphs()
    compiled = minidynamo.compile(f, backend=recorder)
    compiled(vector()).sum().backward()
    assert (len(recorder.graphs), len(recorder.fw_graphs), len(recorder.bw_graphs)) == (1, 1, 1)
    recorder.clear()
    with torch.no_grad():
        compiled(vector())
    assert (len(recorder.fw_graphs), len(recorder.bw_graphs)) == (1, 0)


def test_normalized_text_has_no_comments_and_blank_lines():
    assert normalize_gm("def f(x):\n    # where\n\n    y = x + 1;  x = None  # note\n") == (
        "def f(x):\n    y = x + 1;  x = None\n"
    )


def test_the_comparison_returns_what_it_compiled():
    compiled = assert_same_as_eager(f, vector, calls=2, graphs=1, breaks=0, recompiles=0)
    assert compiled.__wrapped__ is f


def test_a_wrong_number_of_graphs_is_reported():
    with pytest.raises(AssertionError, match="graphs 2 expected, 1 seen"):
        assert_same_as_eager(f, vector, graphs=2)


def test_an_unexpected_break_is_shown():
    def g(x):
        minidynamo.graph_break("for a test")
        return x + 1

    with pytest.raises(AssertionError, match=r"breaks 0 expected, 1 seen(?s:.*)for a test"):
        assert_same_as_eager(g, vector, breaks=0)


def test_a_wrong_backend_is_found():
    def wrong(gm, example_inputs):
        counter = CompileCounter()
        run = counter(gm, example_inputs)

        def call(args):
            return tuple(value * 2 for value in run(args))

        call._boxed_call = True
        return call

    with pytest.raises(AssertionError, match=r"call 0: result: Tensor-likes are not close"):
        assert_same_as_eager(f, vector, backend=wrong)


def test_an_error_that_only_the_compiled_function_raises_is_its_cause():
    def failing(gm, example_inputs):
        raise RuntimeError("no")

    with pytest.raises(AssertionError, match="call 0: eager returned") as caught:
        assert_same_as_eager(f, vector, backend=failing)
    assert isinstance(caught.value.__cause__, minidynamo.errors.BackendError)


def test_no_recompile_names_what_was_compiled():
    compiled = minidynamo.compile(f, backend="eager")
    with pytest.raises(AssertionError, match="compiled f"), no_recompile():
        compiled(vector())
    with no_recompile():
        compiled(vector())


def test_a_watch_sees_what_is_alive_when_probe_runs():
    a, b = torch.ones(2), torch.ones(2)
    watch = StorageWatch(a=a, b=b)
    probe(b)
    view = a[:1]
    del a
    probe(b)
    del view
    probe(b)
    assert watch.seen == [["a", "b"], ["a", "b"], ["b"]]


def test_probe_is_a_copy_with_a_gradient():
    x = torch.ones(2, requires_grad=True)
    y = probe(x)
    assert torch.equal(x, y) and y.data_ptr() != x.data_ptr()
    (y * 3).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_freed_before_needs_as_many_probes_as_it_names():
    tensors = [torch.ones(2)]
    with assert_freed_before(tensors[0]):
        tensors.clear()
        probe(torch.ones(1))
    with pytest.raises(AssertionError, match="probe ran 1 times"), assert_freed_before(nth=1):
        probe(torch.ones(1))
    tensors = [torch.ones(2)]
    with pytest.raises(AssertionError, match="tensor 0"), assert_freed_before(tensors[0]):
        probe(torch.ones(1))
    with pytest.raises(KeyError), assert_freed_before(tensors[0]):
        raise KeyError


@pytest.mark.parametrize("make_inputs", [(), (torch.ones(2),)])
def test_inputs_are_made_by_functions(make_inputs):
    with pytest.raises(ArgumentError, match=r"MD112 .*functions that make the arguments(?s:.*)lambda: "):
        assert_same_as_eager(lambda x: x + 1, *make_inputs)


def test_a_counter_shows_what_it_counted():
    counter = CompileCounter()
    minidynamo.compile(lambda x: x + 1, backend=counter)(torch.ones(2))
    assert repr(counter) == "CompileCounter(frame_count=1, op_count=1)"
