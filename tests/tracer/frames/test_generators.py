# The programs keep the style of users, against the advice of linters.
# ruff: noqa: B007, UP028

import pytest
import torch

from minidynamo.errors import SkipFrame
from tests.end_to_end.programs import Programs, vector
from tests.tracer.capturing import capture

programs = Programs()
test_same_as_eager = programs.test()


def count(n):
    for i in range(n):
        yield i


@programs()
class Cases:
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

    def stopped_early(x):
        items = count(5)
        first = next(items)
        for item in items:
            if item == 2:
                break
        return x + first + next(items), next(count(0), "none")

    @programs(graphs=None, breaks=None)
    def break_inside(x):
        return sum(item.item() for item in x)

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

    def looked_into_no_further_than_needed(x):
        items = count(6)
        return 2 in items, next(items), x + 1

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
