# The programs keep the style of users, against the advice of linters.
# ruff: noqa: B007, C402, UP028

import contextlib

import pytest
import torch

from minidynamo.errors import SkipFrame
from tests.end_to_end.programs import Programs, vector
from tests.tracer.capturing import capture

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


def count(n):
    for i in range(n):
        yield i


@programs()
def consumed_by_builtins(x):
    a = sum(i * x for i in range(3)), any(i > 1 for i in count(3)), all(i for i in count(2)), list(count(2))
    return a, max(i for i in count(4)), dict((i, x) for i in count(2)), [*count(2)], tuple(zip(count(2), "ab"))


@programs()
def stopped_early(x):
    items = count(5)
    first = next(items)
    for item in items:
        if item == 2:
            break
    return x + first + next(items), next(count(0), "none")


@contextlib.contextmanager
def noted(log):
    log.append("in")
    yield len(log)
    log.append("out")


@programs()
def context_manager_from_a_generator(x):
    log = []
    with noted(log) as n:
        y = x + n
    return y, log


@programs(graphs=None, breaks=None)
def break_inside(x):
    return sum(item.item() for item in x)


@programs(breaks=2)
def not_started_and_passed_to_a_break(x):
    items = (i * 2 for i in range(3))
    print(x.dim())
    return list(items), x + 1


@programs()
def sent_to(x):
    def total():
        result = 0
        while True:
            value = yield result
            if value is None:
                return
            result = result + value

    running = total()
    next(running)
    return running.send(x), running.send(x + 1), iter(running) is running


@programs()
def looked_into_no_further_than_needed(x):
    items = count(6)
    return 2 in items, next(items), x + 1


@programs()
def endless(x):
    def powers():
        n = 1
        while True:
            yield x * n
            n *= 2

    items = powers()
    first, second = next(items), next(items)
    return first, second, [a for a, _ in zip(powers(), "abc")]


@programs(backward=False)
def started_and_returned(x):
    def scaled(a, b=2, *c, d, **e):
        for i in range(3):
            try:
                given = yield a * b + i
                a = a if given is None else a + given
            finally:
                a = a + 1

    items = scaled(x, 3, 4, d=x, z=1)
    return next(items), items.send(x), items


@programs(breaks=2)
def started_before_a_break(x):
    n = 0

    def bumped():
        nonlocal n
        while n < 5:
            n += 1
            yield x * n

    items = bumped()
    first = next(items)
    n = 3
    print("break")
    return first, next(items), n


@programs(breaks=2)
def used_up_before_a_break(x):
    items = count(2)
    kept = list(items)
    print("break")
    return x + 1, kept, list(items)


@programs(graphs=2, breaks=3)
def loop_with_a_break_in_its_body(x):
    for value in (x * i for i in range(3)):
        print("body")
        x = x + value
    return x


@programs(graphs=2, breaks=2)
def loop_with_a_break_in_the_generator(x):
    def loud():
        for i in range(3):
            print("in", i)
            yield x * i

    total = x + 1
    for value in loud():
        total = total + value
    return total


@programs()
def closed(x):
    log = []

    def loud():
        try:
            yield x * 2
        finally:
            log.append("closed")

    started, fresh = loud(), loud()
    first = next(started)
    started.close()
    fresh.close()
    return first, log, list(started), list(fresh), started.close()


@programs()
def thrown_into(x):
    def brave():
        try:
            yield x
        except ValueError as error:
            yield x + 1, str(error)

    items = brave()
    first, second = next(items), items.throw(ValueError("bad"))
    try:
        items.throw(KeyError("worse"))
    except KeyError as error:
        return first, second, error.args, list(items)


@programs()
def what_it_returned(x):
    def one():
        yield 1
        return x * 2

    items = one()
    next(items)
    try:
        next(items)
    except StopIteration as stop:
        return stop.value + 1, next(items, "end")


@programs()
def stop_iteration_inside(x):
    def wrong():
        yield x * 2
        raise StopIteration

    items = wrong()
    first = next(items)
    try:
        next(items)
    except StopIteration:
        return "stopped"
    except RuntimeError as error:
        return first, str(error), type(error.__cause__)


@programs(breaks=None, graphs=None)
def asked_while_it_runs(x):
    def ask():
        yield next(items)

    items = ask()
    try:
        next(items)
    except ValueError as error:
        return x + 1, str(error)


@programs()
def error_in_a_context(x):
    log = []

    @contextlib.contextmanager
    def careful(value):
        log.append("in")
        try:
            yield value * 2
        except ValueError as error:
            log.append(str(error))
        finally:
            log.append("out")

    with careful(x) as y:
        x = x + y
    with careful(x) as y:
        raise ValueError("bad")
    return x, y, log


@programs(graphs=2, breaks=2)
def break_in_a_context(x):
    log = []
    with noted(log) as n:
        y = x + n
        print("inside")
        y = y * 2
    return y, log


def test_a_generator_that_is_given_up_inside_try_runs_as_written():
    log = []

    def f(x):
        def loud():
            try:
                yield x
                yield x
            finally:
                log.append("closed")

        for item in loud():
            break
        log.append("behind")
        return item

    with pytest.raises(SkipFrame, match="MD222"):
        capture(f, vector())


def test_a_generator_inside_a_context_runs_as_written():
    def f(x):
        def quiet():
            with torch.no_grad():
                yield x * 2

        items = quiet()
        next(items)
        return items

    with pytest.raises(SkipFrame, match="MD222"):
        capture(f, vector())
