"""Parts common to the printers: lines, the form of a kernel, literals, the order of stores."""

import struct

import pytest
import torch

from minidynamo.codegen.ir.expr import OPS, Const, Ref
from minidynamo.codegen.ir.index import Var, as_index
from minidynamo.codegen.ir.loops import Let, Origin, Store
from minidynamo.codegen.printers.base import (
    COMMON,
    ExpressionPrinter,
    Form,
    Lines,
    layout_of,
    library_calls,
    shortest,
    stores_last,
)
from minidynamo.errors import UserLocation
from tests.codegen.printers import printer_cases as cases


def test_lines_are_indented_by_blocks():
    lines = Lines("  ", "//")
    with lines.block("for (;;) {", "}"):
        lines("a;", "b;")
    assert lines.text() == "for (;;) {\n  a;\n  b;\n}\n"


def test_neighbours_from_one_line_are_told_once():
    lines = Lines("  ", "//")
    first, second = (Origin(n, "add", UserLocation("/a/b.py", n, "f")) for n in (1, 2))
    for origins in ((first,), (first,), (), (first, second), (first,)):
        lines.origins(origins)
        lines("x;")
    head, both = "// b.py:1 in f\n", "// b.py:1 in f\n// b.py:2 in f\n"
    assert lines.text() == f"{head}x;\nx;\nx;\n{both}x;\n{head}x;\n"


def test_rows_of_library_functions_have_their_operands():
    rows = library_calls("m_")
    assert (rows["sin"], rows["atan2"], rows["fma"]) == ("m_sin({0})", "m_atan2({0}, {1})", "m_fma({0}, {1}, {2})")
    assert rows.keys() | COMMON.keys() < OPS.keys() and not rows.keys() & COMMON.keys()


@pytest.mark.parametrize(
    ("case", "form"),
    [
        (cases.chain(10), Form.POINTWISE),
        (cases.scalar(), Form.POINTWISE),
        (cases.softmax(3, 4), Form.ROWS),
        (cases.full("sum", 5), Form.ROWS),
        (cases.columns(2, 3, 4), Form.COLUMNS),
    ],
)
def test_form_of_a_kernel(case, form):
    assert layout_of(case.kernel).form is form


def test_columns_run_along_the_last_row():
    layout = layout_of(cases.columns(2, 3, 4).kernel)
    assert [v.name for v in layout.outer] == ["y0"]
    assert layout.along is not None and layout.along.name == "y1"


@pytest.mark.parametrize("value", [0.5, 300.0, 1e-45, 3.4028234663852886e38, 0.10000000149011612, -2.0, 1e30])
def test_shortest_reads_back_as_the_same_float(value):
    value = struct.unpack("f", struct.pack("f", value))[0]
    text = shortest(value, torch.float32)
    assert struct.unpack("f", struct.pack("f", float(text)))[0] == value
    assert len(text) <= len(repr(value))


def test_shortest_of_a_double_is_exact():
    assert float(shortest(0.1, torch.float64)) == 0.1


def test_index_text():
    i, j = as_index(Var("i", 12)), as_index(Var("j", 5))
    text = ExpressionPrinter().index
    assert text(i * 5 + j) == "5 * i + j"
    assert text(i * -1 + 11) == "-i + 11"
    assert text(i // 4 * 3 + i % 4) == "3 * (i / 4) + (i % 4)"
    assert text((i + j) // 4) == "((i + j) / 4)"
    assert text(as_index(7)) == "7"


def test_stores_wait_for_the_last_read():
    i = Var("y0", 4)
    first = Store("out", cases.at(i), cases.load("x", i))
    second = Store("more", cases.at(i), cases.load("x", i))
    ordered = stores_last((first, second))
    assert [type(s) for s in ordered] == [Let, Let, Store, Store]
    assert isinstance(ordered[2].value, Ref) and ordered[2].value.name == ordered[0].name


def test_stores_stay_where_nothing_is_read_behind_them():
    i = Var("y0", 4)
    body = (Let("a", cases.load("x", i)), Store("out", cases.at(i), Const(1.0, torch.float32)))
    assert stores_last(body) == body
