"""Owns the execution of a Rebuilder's output, and classes whose code must not run meanwhile."""

from typing import Any

from minidynamo.core.names import Namespace
from minidynamo.guards.source import Local
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.tracer.records.side_effects import SideEffects
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import DictKey, ListVariable

C = ConstantVariable


class Loud:
    """A class of which a rebuild may touch only the attributes."""

    def __init__(self) -> None:
        raise AssertionError("user code ran")

    def __new__(cls) -> "Loud":
        raise AssertionError("user code ran")

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError("user code ran")


class LoudList(list):  # type: ignore[type-arg]
    def __init__(self) -> None:
        raise AssertionError("user code ran")

    def extend(self, items: object) -> None:
        raise AssertionError("user code ran")


def key(value: Any) -> DictKey:
    return DictKey(value, C(value))


def rebuilt(*roots: VariableTracker, effects: SideEffects | None = None, **outside: Any) -> Any:
    """Prints and executes the statements for the roots; external values are found by their Local sources."""
    names = Namespace(outside)
    rebuild = Rebuilder(names, effects or SideEffects(), {XS: "xs"}, roots)
    texts = [rebuild.value(root) for root in roots]
    lines = [*rebuild.lines, *rebuild.final_lines, f"result = ({', '.join(texts)},)"]
    local_variables = dict(outside)
    exec("\n".join(lines), dict(names.values), local_variables)
    result = local_variables["result"]
    return result[0] if len(roots) == 1 else result


# An external value, for callers that pass `xs=`.
XS = ListVariable([C(1), C(2), C(3)], source=Local("xs"))
