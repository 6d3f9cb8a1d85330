from __future__ import annotations

import pytest

import minidynamo
from minidynamo.errors import SkipFrame
from tests.end_to_end.programs import Programs, vector
from tests.tracer.capturing import capture

programs = Programs()
test_same_as_eager = programs.test()


@programs()
class Cases:
    def delegated(x):
        def two():
            yield x
            yield x + 1
            return 5

        def all_of_them():
            result = yield from two()
            yield x * result
            yield from [1, x]
            yield from range(2)
            yield from (x * i for i in range(2))
            return (yield from ())

        return list(all_of_them())

    def delegated_sends(x):
        def inner():
            a = yield 1
            b = yield a + 1
            return a + b

        def outer():
            yield (yield from inner())

        items = outer()
        return next(items), items.send(x), items.send(x * 2)

    def delegated_errors(x):
        log = []

        def inner():
            try:
                yield x
            except ValueError as error:
                log.append(str(error))
                return (yield x + 1)
            finally:
                log.append("inner")

        def outer():
            try:
                log.append((yield from inner()))
                yield from [5, 6]
            except KeyError as error:
                yield error.args[0]
            finally:
                log.append("outer")

        one, other, third = outer(), outer(), outer()
        first = next(one), one.throw(ValueError("bad")), one.send(7), one.throw(KeyError("key")), list(one)
        second = next(other), other.throw(KeyError("key"))
        third.close()
        return first, second, log, list(other)

    def delegated_close(x):
        log = []

        def inner():
            try:
                yield x
            finally:
                log.append("inner")

        def outer():
            try:
                yield from inner()
            finally:
                log.append("outer")

        items = outer()
        first = next(items)
        items.close()
        return first + 1, log, list(items)

    @programs(graphs=1, breaks=2)
    def delegating_across_a_break(x):
        def inner(n):
            yield from (x * i for i in range(n))
            yield 7
            return n

        def outer():
            a = yield from inner(2)
            b = yield from inner(a)
            yield a, b

        items = outer()
        first = next(items)
        minidynamo.graph_break()
        print("break")
        return first, list(items)


def test_a_generator_itself_is_not_captured():
    def generator(x):
        yield x

    with pytest.raises(SkipFrame, match="A generator"):
        capture(generator, vector())
