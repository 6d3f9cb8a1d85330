"""Tests of minidynamo/tracer/handlers/references.py: weak references, context variables, the state of threads and
local texts are read while tracing, and guarded."""

from __future__ import annotations

import contextvars
import datetime
import locale
import threading
import weakref

import torch

import minidynamo
from minidynamo import compile as compile_function
from minidynamo.testing import CompileCounter, no_recompile
from minidynamo.tracer.handlers.texts import depends_on_locale
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


class Node:
    def __init__(self, scale):
        self.scale = scale


def node_and_reference():
    node = Node(3)
    return node, weakref.ref(node), torch.randn(4)


class Tree:
    def __init__(self, scale, parent=None):
        self.scale = scale
        self.parent = parent and weakref.ref(parent)
        self.children = []


def test_a_dead_or_other_referent_is_noticed():
    counter = CompileCounter()
    holder = {}

    @compile_function(backend=counter)
    def scaled(reference, x):
        node = reference()
        return x if node is None else x * node.scale

    x = torch.randn(4)
    holder["a"] = Node(2)
    reference = weakref.ref(holder["a"])
    assert torch.equal(scaled(reference, x), x * 2)
    with no_recompile():
        assert torch.equal(scaled(reference, x), x * 2)
    holder["b"] = Node(5)
    assert torch.equal(scaled(weakref.ref(holder["b"]), x), x * 5)
    del holder["a"]
    assert reference() is None
    assert torch.equal(scaled(reference, x), x)


def test_compiling_keeps_no_referent_alive():
    @compile_function(backend="eager")
    def scaled(reference, x):
        return x * reference().scale

    node = Node(2)
    reference = weakref.ref(node)
    scaled(reference, torch.randn(4))
    del node
    assert reference() is None


DEPTH: contextvars.ContextVar[int] = contextvars.ContextVar("depth", default=2)
SCALE: contextvars.ContextVar[torch.Tensor] = contextvars.ContextVar("scale")
LOCAL = threading.local()
LOCAL.depth = 3


@programs()
class Cases:
    @programs(node_and_reference)
    def read_a_reference(node, reference, x):
        found = reference()
        return x * found.scale, found is node

    @programs(node_and_reference)
    def make_and_return_a_reference(node, reference, x):
        made = weakref.ref(node)
        return x * made().scale, made() is node, made

    @programs(node_and_reference, breaks=1)
    def reference_with_a_callback(node, reference, x):
        made = weakref.ref(node, print)
        return x * made().scale

    def reference_to_a_new_object(x):
        node = Node(2)
        made = weakref.ref(node)
        return x * made().scale, node.scale, made() is node, weakref.ref(node) is made

    def references_to_parents(x):
        root = Tree(2)
        root.children.append(Tree(3, root))
        (child,) = root.children
        child.children.append(Tree(4, child))
        return x * child.children[0].parent().scale + child.parent().scale

    @programs(graphs=2, breaks=1)
    def a_new_object_that_is_gone(x):
        y = x + 1
        made = weakref.ref(Node(2))
        return y * 2, made() is None

    @programs(breaks=None, graphs=None)
    def a_new_object_that_goes(x):
        node = Node(2)
        made = weakref.ref(node)
        y = x * made().scale
        del node
        return y * 2, made()

    @programs(breaks=None, graphs=None)
    def a_reference_that_is_kept(x):
        node = Node(2)
        made = weakref.ref(node)
        y = x * made().scale
        minidynamo.graph_break()
        return y * made().scale, made

    @programs(breaks=None, graphs=None)
    def a_new_object_in_a_list_that_is_emptied(x):
        nodes = [Node(2)]
        made = weakref.ref(nodes[0])
        y = x * made().scale
        nodes.clear()
        return y * 2, made() is None

    def context_variables(x):
        return x * DEPTH.get(), x * DEPTH.get(5), SCALE.get(None), SCALE.get(x) is x

    @programs(graphs=0, breaks=1)
    def context_variables_without_a_value(x):
        return SCALE.get()

    def state_of_a_thread(x):
        LOCAL.depth += 1
        LOCAL.last = y = x * LOCAL.depth
        del LOCAL.last
        LOCAL.depth -= 1
        return y, getattr(LOCAL, "other", 7), hasattr(LOCAL, "last")


def test_another_value_of_a_context_variable_is_noticed():
    def f(x):
        return x * DEPTH.get(), SCALE.get(x)

    compiled = minidynamo.compile(f, backend="eager", fullgraph=True)
    x = torch.ones(2)

    def in_a_context():
        assert compiled(x)[0].tolist() == [2, 2]
        DEPTH.set(4)
        SCALE.set(x * 3)
        assert compiled(x)[0].tolist() == [4, 4]
        assert compiled(x)[1] is SCALE.get()

    contextvars.copy_context().run(in_a_context)
    assert compiled(x)[0].tolist() == [2, 2]
    assert compiled(x)[1] is x


def test_another_thread_has_its_own_state():
    def f(x):
        return x * getattr(LOCAL, "depth", 1)

    compiled = minidynamo.compile(f, backend="eager", fullgraph=True)
    x = torch.ones(2)
    found = []

    def elsewhere():
        found.append(compiled(x).tolist())
        LOCAL.depth = 5
        found.append(compiled(x).tolist())

    assert compiled(x).tolist() == [3, 3]
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [[1, 1], [5, 5]]
    assert compiled(x).tolist() == [3, 3]


DAY = datetime.date(2020, 1, 2)


@programs()
class LocalTexts:
    @programs(breaks=1)
    def name_of_a_day(x):
        y = x + 1
        return y, f"{DAY:%A}"

    @programs(breaks=1)
    def name_of_a_month(x):
        y = x + 1
        text = "{when:%B}"
        return y, text.format(when=DAY)

    @programs(breaks=1)
    def date_that_formats_itself(x):
        y = x + 1
        return y, DAY.__format__("%B")

    @programs(breaks=1)
    def number_with_signs_between_digits(x):
        y = x + 1
        return y, f"{12345:n}"

    def text_that_is_the_same_everywhere(x):
        texts = f"{DAY}", "{0} {a:>5}".format(1, a="x"), f"{3.5:.2f}", "{a}".format_map({"a": 1}), f"{0.5:%}"
        return x + 1, texts

    def formats_that_do_not_fit(x):
        found = []
        for text in ("{:d}", "{} {}", "{a}", "{"):
            try:
                text.format("x")
            except (ValueError, LookupError) as error:
                found.append(str(error))
        return x + 1, found


def test_which_text_is_local():
    assert depends_on_locale(DAY, "%A") and depends_on_locale(5, "n") and depends_on_locale(0.5, "010n")
    assert not depends_on_locale(DAY, "") and not depends_on_locale(0.5, ".1%") and not depends_on_locale(5, "d")


def test_the_locale_of_the_second_call_counts(monkeypatch):
    def f(x, how):
        return x + 1, f"{12345:n}"

    compiled = minidynamo.compile(f, backend="eager")
    before = locale.setlocale(locale.LC_NUMERIC)
    compiled(torch.ones(2), "n")
    try:
        locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")
        assert compiled(torch.ones(2), "n")[1] == f"{12345:n}"
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)
