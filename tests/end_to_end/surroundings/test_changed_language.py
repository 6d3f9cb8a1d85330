"""State of functions, closures, generators, imports and patterns, changed between calls."""

# ruff: noqa: PLW0603, F821

from __future__ import annotations

import sys
import types

import torch

from tests.end_to_end.histories import Histories, attempt, vector

histories = Histories()
test_same_as_eager = histories.test()


class Pair:
    __match_args__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


@histories
class Cases:
    def attributes_of_a_function(compiled):
        def inner(x):
            return x * inner.factor if hasattr(inner, "factor") else x

        f = compiled(lambda x: inner(x))
        yield f(vector())
        inner.factor = 3
        yield f(vector())
        inner.factor = 4
        yield f(vector())
        del inner.factor
        yield f(vector())

    def contents_of_cells(compiled):
        n, t, flag = 2, torch.ones(3), None
        inner = lambda x: x * n + t if flag is None else x - t
        f = compiled(lambda x: inner(x))
        yield f(vector())
        n = 2.5
        yield f(vector())
        t = torch.ones(1)
        yield f(vector())
        flag = False
        yield f(vector())
        n = torch.ones(3)
        flag = None
        yield f(vector())

    def cells_written_by_the_graph(compiled):
        n = 0

        @compiled
        def f(x):
            nonlocal n
            n = n + 1
            return x + n

        yield (f(vector()), n), (f(vector()), n)
        n = 10
        yield f(vector()), n

    def arguments_that_patterns_match(compiled):
        @compiled
        def f(x, pair):
            match pair:
                case Pair(1, b):
                    return x + b
                case Pair(a, b=2):
                    return x * a
                case {"k": k, **rest}:
                    return x * k, len(rest)
                case [first, *others]:
                    return x + first, others
                case _:
                    return x

        for pair in (
            *(Pair(1, 5), Pair(1, 6), Pair(3, 2), Pair(3, 3), {"k": 2}, {"k": 2, "z": 1}, {"z": 1}, [1, 2], (1,), 5),
        ):
            yield f(vector(), pair)
        pair = Pair(5, 1)
        yield f(vector(), pair)
        Pair.__match_args__ = ("b", "a")
        yield f(vector(), pair)
        Pair.__match_args__ = ("a", "b")
        yield f(vector(), pair)
        del pair.b
        yield f(vector(), pair)

    def what_imports_find(compiled):
        module = types.ModuleType("minidynamo_test_module")
        module.factor = 2
        sys.modules[module.__name__] = module

        @compiled
        def f(x):
            import minidynamo_test_module as found
            from minidynamo_test_module import factor

            return x * factor + found.factor

        yield f(vector())
        module.factor = 3
        yield f(vector())
        other = types.ModuleType("minidynamo_test_module")
        other.factor = 4
        sys.modules[module.__name__] = other
        yield f(vector())
        del other.factor
        yield attempt(f, vector())
        del sys.modules[module.__name__]
        yield type(attempt(f, vector())).__name__

    def globals_of_generators(compiled):
        namespace = globals()
        namespace["STEP"] = 2

        def steps():
            for i in range(3):
                yield i * STEP

        f = compiled(lambda x: ([x + step for step in steps()], sum(s for s in steps() if s < LIMIT)))
        namespace["LIMIT"] = 3
        yield f(vector())
        namespace["STEP"] = 3
        yield f(vector())
        namespace["LIMIT"] = 4
        yield f(vector())

    def generators_that_are_handed_over(compiled):
        items = [1, 2]

        @compiled
        def f(x, n):
            def rows():
                for item in items:
                    yield x * item + n

            started = rows()
            return next(started), started, rows()

        for n in (1, 2):
            first, started, fresh = f(vector(), n)
            items.append(n)
            yield first, list(started), list(fresh)
            yield [type(started).__name__, started.__name__, started.__qualname__.rpartition(".")[2]]

    def generators_passed_in(compiled):
        @compiled
        def f(x, rows):
            total = x * 1
            for row in rows:
                total = total + row
            return total, next(rows, "end")

        for n in (3, 3, 4):
            yield f(vector(), iter(range(n))), f(vector(), (i * 2 for i in range(n)))

    def superclass_methods(compiled):
        class Base:
            def act(self, x):
                return x + 1

        class Child(Base):
            def act(self, x):
                return super().act(x) * 2

        child = Child()
        f = compiled(lambda x: child.act(x))
        yield f(vector())
        Base.act = lambda self, x: x + 10
        yield f(vector())
        Child.act = Base.act
        yield f(vector())

    def functions_given_back(compiled):
        @compiled
        def f(x, n):
            count = 0

            def bump(by=n, *, extra: int = 0):
                nonlocal count
                count += by + extra
                return x + count

            bump()
            return bump

        for n in (1, 2):
            bump = f(vector(), n)
            yield bump(), bump(5), bump(extra=1), bump.__defaults__, bump.__kwdefaults__, bump.__name__
            yield bump.__annotations__, bump.__closure__[0].cell_contents
