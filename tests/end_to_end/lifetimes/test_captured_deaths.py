"""Deaths of objects in cells, nested functions and callbacks of torch's own functions: as in eager."""

from __future__ import annotations

import weakref

import torch

import minidynamo
from tests.end_to_end.histories import Histories, vector
from tests.end_to_end.programs import rows_of

histories = Histories()
test_same_as_eager = histories.test("eager", "aot_eager")


class Part:
    name = "part"


class Holder:
    pass


def histories_of(programs):
    """Adds histories that call each program of a class with an otherwise unreferenced object: first unwatched,
    then watched."""
    for program in rows_of(programs):

        def history(compiled, program=program):
            fn, log = compiled(program), []

            def made(is_watched):
                part = Part()
                if is_watched:
                    weakref.finalize(part, log.append, "died")
                return part

            for is_watched in (False, True, True, False, True):
                log.clear()
                yield fn(vector(), made(is_watched), log), list(log)

        history.__name__ = program.__name__
        histories(history)
    return programs


@histories_of
class Captured:
    def captured_by_what_is_gone(x, part, log):
        name = (lambda: part.name)()
        minidynamo.graph_break()
        log.append(name)
        return x + 1

    def captured_by_what_goes(x, part, log):
        def inner():
            return part.name

        minidynamo.graph_break()
        del inner
        log.append("behind")
        return x + 1

    def captured_over_two_breaks(x, part, log):
        name = (lambda: part.name)()
        minidynamo.graph_break()
        y = x + len((lambda: part.name)())
        minidynamo.graph_break()
        log.append(name)
        return y

    def nested_with_a_cell(x, part, log):
        def inner(v):
            k = [1]
            minidynamo.graph_break()
            return v + (lambda: k[0])(), part.name

        y = inner(x)
        del inner
        log.append("behind")
        return y

    def nested_generator(x, part, log):
        def inner(v):
            yield v + 1
            minidynamo.graph_break()
            yield part.name

        y = [*inner(x)]
        del inner
        log.append("behind")
        return y


@histories
def callbacks_that_are_functions_of_torch(compiled):
    holder, layer, weight = Holder(), torch.nn.Linear(1, 1), torch.ones(3)

    @compiled
    def drop(x):
        holder.part = None
        return x * weight, layer.training

    for callback in (layer.eval, None, lambda: torch.nn.init.zeros_(weight), layer.eval):
        layer.train()
        weight.fill_(1)
        holder.part = Part()
        if callback is not None:
            weakref.finalize(holder.part, callback)
        yield drop(vector()), weight, layer.training
        holder.part = Part()
        if callback is not None:
            weakref.finalize(holder.part, torch.nn.init.zeros_, weight)
        yield drop(vector()), weight, layer.training
