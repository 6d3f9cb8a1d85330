"""Arguments of a frame may die in its graph, before eager's time, unless the first call has watched arguments."""

from __future__ import annotations

import weakref

import pytest
import torch

import minidynamo
from tests.end_to_end.histories import Histories, compare, vector

histories = Histories()
test_same_as_eager = histories.test()


class Holder:
    part = None


class Finalized:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("died")


def watched(value, log):
    """Returns the value, with a finalizer that records its death in the log."""
    weakref.finalize(value, log.append, "died")
    return value


def call_with_temporary(make, log, is_watched):
    return watched(make(), log) if is_watched else make()


PATTERN = (True, False, True)


def histories_of(*programs):
    """Calls each program with a temporary: first watched, then unwatched."""
    for program, make in programs:

        def history(compiled, make=make, program=program):
            log = []
            fn = compiled(program)
            for is_watched in PATTERN:
                log.clear()
                yield fn(call_with_temporary(make, log, is_watched), log), list(log)

        history.__name__ = f"{program.__name__}_{make.__name__}"
        histories(history)


def holder():
    made = Holder()
    made.part = torch.ones(3)
    return made


def effect_behind(x, log):
    y = x * 2
    log.append("written")
    return y + 1


def effect_without_use(x, log):
    log.append("written")
    return torch.ones(3) + 1


def break_behind(x, log):
    y = x * 2
    minidynamo.graph_break()
    log.append("written")
    return y + len(log)


def breaks_behind(x, log):
    y = x * 2
    minidynamo.graph_break()
    y = y + len(log)
    minidynamo.graph_break()
    log.append("written")
    return y + len(log)


def read_behind_a_break(x, log):
    y = x * 2
    minidynamo.graph_break()
    return y * len(log)


def part_of_it(made, log):
    y = made.part * 2
    log.append("written")
    minidynamo.graph_break()
    return y * len(log)


histories_of(
    (effect_behind, vector),
    (effect_without_use, vector),
    (effect_without_use, Holder),
    (break_behind, vector),
    (breaks_behind, vector),
    (read_behind_a_break, vector),
    (part_of_it, holder),
)


def with_attribute(log, is_watched):
    made = vector()
    made.tag = call_with_temporary(Holder, log, is_watched)
    return made


def with_gradient(log, is_watched):
    made = torch.ones(3, requires_grad=True)
    made.grad = call_with_temporary(vector, log, is_watched)
    return made


def of_a_subclass(log, is_watched):
    class Own(torch.Tensor):
        pass

    return call_with_temporary(lambda: vector().as_subclass(Own), log, is_watched)


def bound_anew(x, log):
    x = x.detach() * 2
    log.append("written")
    return x + len(log)


def deleted(x, log):
    y = x.detach() * 2
    del x
    return y + len(log)


def broken(x, log):
    y = x.detach() * 2
    minidynamo.graph_break()
    log.append("written")
    return y + len(log)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [with_attribute, with_gradient, of_a_subclass])
@pytest.mark.parametrize("program", [bound_anew, deleted, broken])
def test_what_only_a_tensor_holds(program, make):
    def history(compiled):
        log = []
        fn = compiled(program)
        for is_watched in PATTERN:
            log.clear()
            yield fn(make(log, is_watched), log).as_subclass(torch.Tensor), list(log)

    compare(history, "eager")


def meets_a_type_error(x):
    try:
        return x + None
    except TypeError:
        return 1


def meets_an_index_error(x):
    try:
        return x[10]
    except IndexError:
        return 2


def needs_values(x):
    return len(x.nonzero())


@histories
class EarlyDeaths:
    def elements_die_along(compiled):
        log = []

        @compiled
        def of_list(xs, log):
            y = xs[0] * 2
            log.append("written")
            return y

        for is_watched in PATTERN:
            log.clear()
            yield of_list([call_with_temporary(vector, log, is_watched)], log), list(log)

    def finalizers_of_arguments(compiled):
        log = []

        @compiled
        def f(part, x):
            log.append("written")
            return x + 1

        for make in (lambda: Finalized(log), Holder, lambda: Finalized(log)):
            log.clear()
            yield f(make(), vector()), list(log)

    def callbacks_that_write_what_the_graph_reads(compiled):
        offset = torch.zeros(3)

        @compiled
        def f(x):
            y = x * 2
            return y + offset

        for is_watched in PATTERN:
            offset.zero_()
            x = [vector()]
            if is_watched:
                weakref.finalize(x[0], offset.fill_, 5)
            yield f(x.pop()), offset.clone()

    def reference_that_a_function_reads_at_a_break(compiled):
        references = []

        @minidynamo.disable
        def count_alive():
            return sum(reference() is not None for reference in references)

        @compiled
        def f(x):
            y = x * 2
            return y + count_alive()

        for is_watched in PATTERN:
            references.clear()
            x = [vector()]
            if is_watched:
                references.append(weakref.ref(x[0]))
            yield f(x.pop())

    def made_and_watched_at_a_break(compiled):
        log = []

        @minidynamo.disable
        def watch(value, is_watched):
            if is_watched:
                weakref.finalize(value, log.append, "died")

        @compiled
        def f(x, is_watched):
            y = x * 2
            watch(y, is_watched)
            z = y + 1
            log.append("written")
            return z

        for is_watched in PATTERN:
            log.clear()
            yield f(vector(), is_watched), list(log)

    def keywords_that_are_taken_out(compiled):
        log = []

        @compiled
        def f(log, **given):
            y = given.pop("x") * 2
            log.append("written")
            return y

        for is_watched in PATTERN:
            log.clear()
            yield f(log, x=call_with_temporary(vector, log, is_watched)), list(log)

    def arguments_of_calls_that_no_graph_takes(compiled):
        for program in (meets_a_type_error, meets_an_index_error, needs_values):
            log = []
            fn = compiled(program)
            for _ in range(2):
                x = watched(vector(), log)
                yield fn(x)
                del x
                yield list(log)
