"""Values wrapped without a program around them, for the tests of `tracer/wrap.py` and `tracer/wrappers/`."""

from minidynamo.guards.source import Local
from minidynamo.tracer.capture.registrations import register_all
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.wrap import wrap

V = Local("v")

register_all()


def empty_graph():
    return OutputGraph(lambda: None)


def assert_wrapped(value, tracker, kinds):
    """`value` gets a `tracker`, once, and what is read of it is guarded by `kinds` at least."""
    graph = empty_graph()
    variable = wrap(graph, value, V)
    assert type(variable) is tracker and variable.python_type is type(value)
    contents = getattr(variable, "storage", None) or variable
    [*getattr(contents, "items", ())]  # what is in a container is read, and guarded, when it is asked for
    getattr(contents, "value", None)  # and so is what a constant is
    assert kinds <= {guard.kind for guard in graph.guards if guard.source == V}
    assert wrap(graph, value, V) is variable


def kinds(graph, source=V):
    """What is guarded of the value at `source`, in order."""
    return [guard.kind for guard in graph.guards if guard.source == source]
