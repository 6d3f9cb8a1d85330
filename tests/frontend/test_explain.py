from __future__ import annotations

import importlib
import inspect
import sys
import zipfile

import pytest
import torch

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.errors import ArgumentError


class Net(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            x = x + 1
        return x * 2


def cut(x):
    if x.sum() > 0:
        x = x + 1
    return x * 2


def test_breaks_tell_each_place_once_with_its_line():
    f = minidynamo.compile(cut, backend="eager", dynamic=False)
    assert f.breaks() == "cut has no graph breaks."
    f(torch.ones(2)), f(torch.ones(3))
    breaks_text = f.breaks()
    assert (
        breaks_text.count("MD201") == 2 and breaks_text.count("if x.sum() > 0:") == 1
    )  # once in the headline, once in `explain`
    assert "In 2 versions." in breaks_text
    f.reset()
    assert f.breaks() == "cut has no graph breaks."


def test_lines_of_modules_in_archives_are_shown(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "programs.zip", "w") as archive:
        archive.writestr("zipped_program.py", inspect.getsource(cut))
    monkeypatch.syspath_prepend(tmp_path / "programs.zip")
    f = minidynamo.compile(importlib.import_module("zipped_program").cut, backend="eager")
    f(torch.ones(2))
    assert "zipped_program.py:2 in cut\n    2 |     if x.sum() > 0:" in f.breaks()
    del sys.modules["zipped_program"]


def test_breaks_tell_what_runs_as_written():
    def refuse(gm, example_inputs):
        raise ValueError("no")

    f = minidynamo.compile(lambda x: x + 1, backend=refuse, on_error="eager")
    with pytest.warns(MinidynamoNotice, match="MD520"):
        f(torch.ones(2))
    assert "MD520 backend 'refuse' failed" in f.breaks()


def test_a_module_answers_what_a_function_does():
    net = minidynamo.compile(Net(), backend="eager")
    assert "not compiled yet" in str(minidynamo.explain(net))
    net(torch.ones(2)), net(torch.ones(3))
    explanation = minidynamo.explain(net)
    assert "tensor `x`: float32[2] on cpu" in explanation.guards() and "class GraphModule" in explanation.code("graph")
    assert explanation.stats is minidynamo.stats(net) and len(explanation.graphs) == explanation.stats.graphs
    assert explanation.why() == minidynamo.why(net)


def test_printed_it_is_an_overview():
    f = minidynamo.compile(cut, backend="aot_eager")
    x = torch.ones(2, requires_grad=True)
    f(x).sum().backward()
    f(torch.ones(3, requires_grad=True))
    text = str(f.explain())
    assert text.startswith("cut: ") and "graph breaks: " in text and "capture" in text
    assert "MD201" in text and "MD301" in text and text == str(minidynamo.explain(f))
    assert repr(f.explain()).startswith("<explanation of cut: ")


def test_what_was_not_compiled_is_refused_by_name():
    with pytest.raises(ArgumentError, match=r"MD106 cut was not returned by minidynamo.compile"):
        minidynamo.why(cut)
    with pytest.raises(ArgumentError, match=r"class Net was not(?s:.*)A copy of a compiled module is a plain module"):
        minidynamo.saved(Net())
    with pytest.raises(ArgumentError, match=r"MD106 len was not"):
        minidynamo.explain(len)


def test_a_call_is_explained_and_leaves_no_trace():
    compiled = minidynamo.compile(cut, backend="eager")
    compiled(torch.ones(2))
    before = str(compiled.stats), compiled.guards()
    explained = minidynamo.explain(compiled)(torch.ones(5))
    assert (str(compiled.stats), compiled.guards()) == before
    assert "float32[5]" in explained.guards() and explained.stats.calls == 1
    assert explained.graph_count == len(explained.graphs) == explained.graph_break_count + 1 == 2
    assert [reason.code for reason in explained.break_reasons] == ["MD201"]
    assert explained.op_count == sum(len(ops) for ops in explained.ops_per_graph) >= 2
    assert explained.out_guards == explained.guards().splitlines() and "capture" in explained.compile_times
    assert "float32[3]" in explained(torch.ones(3)).guards()  # explains a different call


def test_what_is_not_compiled_is_explained_by_a_call_and_stays_as_it_is():
    assert minidynamo.explain(cut)(torch.ones(2)).graph_count == 2
    net, x = Net(), torch.ones(2)
    assert "not compiled yet" in str(minidynamo.explain(net))
    assert minidynamo.explain(net)(x).graph_count == 2 and "_compiled_call_impl" not in vars(net)
    assert minidynamo.explain(net.forward)(x).graph_count == 2
    minidynamo.compile(net, backend="eager")
    assert minidynamo.explain(net)(x).stats.calls == 1 and minidynamo.stats(net).calls == 0
