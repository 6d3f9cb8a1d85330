"""Classes and type aliases created inside a compiled function: one clean break each, the same results."""

import ast

import torch

from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


class Meta(type):
    pass


NEW_SYNTAX = """
def type_parameters(x):
    def first[T](v: T) -> T:
        return v * 2

    class Box[T]:
        def __init__(self, v: T):
            self.v = v

    return first(x), Box(x).v + 1


def type_alias(x):
    type Number = int | float
    y = x + 1
    return y, Number.__name__


def quotes_in_formatted_text(x):
    d = {"a": 1}
    return x + 1, f"{d["a"]} {f"{1 + 1}"}"
"""


def new_syntax():
    """Runs the programs above on Python versions that know their syntax."""
    namespace = {"torch": torch}
    if hasattr(ast, "TypeAlias"):
        exec(compile(NEW_SYNTAX, __file__, "exec"), namespace)
    return [value for name, value in namespace.items() if name in ("type_parameters", "type_alias") or "text" in name]


@programs(graphs=3, breaks=1)
class Cases:
    # A class is a new object at each call, so the code after the class is compiled again.
    def class_over_variables(x):
        y = x + 1
        n = 2

        class Scale:
            factor = n * 2

            def act(self):
                return y * self.factor * n

        return Scale().act()

    def decorated_with_bases(x):
        y = x * 2

        def marked(cls):
            cls.extra = 5
            return cls

        @marked
        class Table(dict, metaclass=Meta):
            def act(self):
                return y * self.extra

        return Table().act()

    @programs(graphs=2, breaks=2)
    def super_and_class_cell(x):
        class Base:
            def act(self):
                return x + 1

        class Child(Base):
            def act(self):
                return super().act() * 2

            def name(self):
                return __class__.__name__

        return Child().act(), Child().name()

    @programs(graphs=3, breaks=2)
    def made_in_a_callee(x):
        def make(n):
            class Scale:
                def act(self):
                    return n * 2

            return Scale

        return make(x + 1)().act() + 1


def test_new_syntax():
    for program in new_syntax():
        assert_same_as_eager(program, vector, calls=2)
