"""Values wrapped without a program, for the tests of `tracer/wrap.py` and `tracer/wrappers/`."""

from minidynamo.guards.source import Local
from minidynamo.tracer.capture.frame import register_all
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.wrap import wrap

V = Local("v")

register_all()


def empty_graph():
    return OutputGraph(lambda: None)


def assert_wrapped(value, tracker, kinds):
    """Checks that `value` gets a `tracker`, once, and that reads are guarded at least by `kinds`."""
    graph = empty_graph()
    variable = wrap(graph, value, V)
    assert type(variable) is tracker and variable.python_type is type(value)
    contents = getattr(variable, "storage", None) or variable
    [*getattr(contents, "items", ())]  # items of containers are read, and guarded, on access
    getattr(contents, "value", None)  # the same for the value of a constant
    assert kinds <= {guard.kind for guard in graph.guards if guard.source == V}
    assert wrap(graph, value, V) is variable


def kinds(graph, source=V):
    """Returns the guard kinds for the value at `source`, in order."""
    return [guard.kind for guard in graph.guards if guard.source == source]
