"""Tests of minidynamo/autograd/graph/inputs.py."""

import pytest
from torch import fx

from minidynamo.autograd.graph.inputs import InputLayout, flatten_inputs, layout_of, unflatten_inputs
from minidynamo.graph.boxed import mark_boxed

LAYOUT = InputLayout(("x", "xs", "y"), (None, 2, None), (False, True, False))


def graph():
    made = fx.Graph()
    nodes = [made.placeholder(name) for name in ("x", "xs", "y")]
    nodes[1].meta["steal_arg"] = True
    made.output(tuple(nodes))
    return fx.GraphModule({}, made)


def test_layout():
    layout = layout_of(graph(), [1, [2, 3], 4])
    assert layout == LAYOUT
    assert layout.flat_names() == ("x", "xs_0", "xs_1", "y")
    assert layout.flatten([1, [2, 3], 4]) == [1, 2, 3, 4]
    assert layout.unflatten([1, 2, 3, 4]) == [1, [2, 3], 4]
    assert layout.donated_inputs() == (1, 2)


def test_lists_are_spelled_out_and_emptied_before_the_call():
    seen = []

    def call(flat):
        seen.append((list(flat), len(given), len(args)))
        flat.clear()
        return ("result",)

    entry = flatten_inputs(LAYOUT, mark_boxed(call))
    given = ["b", "c"]
    args = ["a", given, "d"]
    assert entry(args) == ("result",)
    assert seen == [(["a", "b", "c", "d"], 0, 0)]


def test_a_list_that_was_not_given_up_stays():
    layout = InputLayout(("xs",), (2,), (False,))
    given = ["b", "c"]
    assert flatten_inputs(layout, mark_boxed(lambda flat: tuple(flat)))([given]) == ("b", "c")
    assert given == ["b", "c"]


def test_without_lists_there_is_no_wrapper():
    call = mark_boxed(lambda args: args)
    assert flatten_inputs(InputLayout(("x",), (None,), (False,)), call) is call


@pytest.mark.parametrize(
    "args, words",
    [
        (["a", ["b"], "d"], "list of 2 values, not for a list of 1"),
        (["a", ("b", "c"), "d"], "not for tuple"),
        (("a", ["b", "c"], "d"), "takes one list of arguments, not tuple"),
    ],
)
def test_another_structure_is_refused(args, words):
    entry = flatten_inputs(LAYOUT, mark_boxed(lambda flat: flat))
    with pytest.raises(TypeError, match=words):
        entry(args)


def test_flat_values_become_lists_again():
    flat = [1, 2, 3, 4]
    assert unflatten_inputs(LAYOUT, lambda args: tuple(args))(flat) == (1, [2, 3], 4)
    assert flat == []
