"""External objects whose deaths are watched when the program is compiled: they die where the program writes."""

from __future__ import annotations

import collections
import weakref

import torch

import minidynamo
from minidynamo.testing import CompileCounter
from tests.end_to_end.histories import Histories, vector
from tests.end_to_end.programs import rows_of

histories = Histories()
test_same_as_eager = histories.test()


class Part:
    def __init__(self, name="part"):
        self.name = name


class Finalized(Part):
    log: list[str] = []  # noqa: RUF012

    def __del__(self):
        self.log.append(self.name)


class Slotted:
    __slots__ = ("part",)


class Holder:
    pass


class Watch:
    """Records the deaths of the parts that it has created."""

    def __init__(self):
        self.dead = []
        self.references = []

    def watched(self, part):
        self.references.append(weakref.ref(part, lambda _: self.dead.append(1)))
        return part

    def parts(self, count, is_watched):
        made = [Part() for _ in range(count)]
        return [self.watched(part) for part in made] if is_watched else made


def deaths(make):
    """Returns a decorator of a class of programs. Each is called with a fresh external object of `make`: first with
    watched parts, then with unwatched parts."""

    def add(programs):
        for program in rows_of(programs):

            def history(compiled, program=program):
                watch = Watch()
                fn = compiled(program)
                for is_watched in (True, True, False):
                    watch.dead.clear()
                    thing = make(watch, is_watched)
                    yield fn(thing, watch.dead, vector()), list(watch.dead)
                    yield len(watch.dead)

            history.__name__ = program.__name__
            histories(history)
        return programs

    return add


def holder(watch, is_watched):
    made = Holder()
    made.part, made.other = watch.parts(2, is_watched)
    return made


def slots(watch, is_watched):
    made = Slotted()
    (made.part,) = watch.parts(1, is_watched)
    return made


def table(watch, is_watched):
    first, second = watch.parts(2, is_watched)
    return {"a": first, "b": second, "c": 3}


def sequence(watch, is_watched):
    return watch.parts(4, is_watched)


def queue(watch, is_watched):
    return collections.deque(watch.parts(3, is_watched), maxlen=3)


def members(watch, is_watched):
    return {*watch.parts(2, is_watched)}


def nested(watch, is_watched):
    made = Holder()
    made.parts = [*watch.parts(1, is_watched)]
    return made


@deaths(slots)
class OfSlots:
    def set_slot(thing, dead, x):
        thing.part = x
        return x + 1, len(dead)

    def delete_slot(thing, dead, x):
        del thing.part
        return x + 1, len(dead)


@deaths(table)
class OfDicts:
    def set_item(thing, dead, x):
        thing["a"] = x
        return x + 1, len(dead)

    def delete_item(thing, dead, x):
        del thing["b"]
        return x + 1, len(dead)

    def pop_item(thing, dead, x):
        thing.pop("a")
        between = len(dead)
        name = thing.pop("b").name
        return x + 1, between, name, len(dead)

    def clear_items(thing, dead, x):
        thing.clear()
        return x + 1, len(dead)


@deaths(queue)
class OfDeques:
    def overflow(thing, dead, x):
        thing.append(1)
        between = len(dead)
        thing.appendleft(2)
        return x + 1, between, len(dead)

    def shift(thing, dead, x):
        thing.popleft()
        return x + 1, len(dead)


@deaths(members)
class OfSets:
    def discard_members(thing, dead, x):
        for part in [*thing]:
            thing.discard(part)
        del part
        return x + 1, len(dead)

    def clear_members(thing, dead, x):
        thing.clear()
        return x + 1, len(dead)


@deaths(nested)
class OfNestedLists:
    def drop_a_list(thing, dead, x):
        thing.parts = None
        return x + 1, len(dead)


@deaths(sequence)
class OfLists:
    def set_element(thing, dead, x):
        thing[0] = None
        thing[-1] = 3
        return x + 1, len(dead)

    def pop_element(thing, dead, x):
        thing.pop()
        between = len(dead)
        kept = thing.pop(0)
        then = len(dead)
        del kept
        return x + 1, between, then, len(dead)

    def clear_elements(thing, dead, x):
        thing.clear()
        return x + 1, len(dead)

    def assign_elements(thing, dead, x):
        thing[:] = [x, x]
        return x + 1, len(dead)

    def in_a_loop(thing, dead, x):
        found = []
        while thing:
            x = x + 1
            thing.pop()
            found.append(len(dead))
        return x, found


@deaths(holder)
class OfAttributes:
    def set_attribute(thing, dead, x):
        y = x + 1
        thing.part = None
        return y, len(dead), y * 2

    def delete_attribute(thing, dead, x):
        del thing.part
        return x + 1, len(dead)

    def move_to_another_place(thing, dead, x):
        kept = thing.part
        thing.part = None
        between = len(dead)
        thing.other = kept
        then = len(dead)
        del kept
        thing.other = None
        return x + 1, between, then, len(dead)


CURRENT = None


@histories
class Deaths:
    def global_variables(compiled):
        watch = Watch()

        @compiled
        def replace(x):
            global CURRENT
            CURRENT = None
            return x + 1, len(watch.dead)

        @compiled
        def delete(x):
            global CURRENT
            del CURRENT
            found = len(watch.dead)
            CURRENT = 1  # noqa: F841
            return x + 1, found

        for fn in (replace, delete):
            for is_watched in (True, True, False):
                watch.dead.clear()
                globals()["CURRENT"] = watch.parts(1, is_watched)[0]
                yield fn(vector())

    def variables_of_an_outer_function(compiled):
        watch = Watch()
        part = None

        @compiled
        def replace(x):
            nonlocal part
            part = 3
            return x + 1, len(watch.dead)

        for is_watched in (True, True, False):
            watch.dead.clear()
            part = watch.parts(1, is_watched)[0]
            yield replace(vector())

    def attributes_of_classes_and_modules(compiled):
        watch = Watch()

        class Settings:
            part = None

        layer = torch.nn.Linear(3, 3)
        layer.register_buffer("state", None)

        @compiled
        def replace(x):
            Settings.part = 3
            return x + 1, len(watch.dead)

        @compiled
        def of_module(x):
            layer.part = None
            return layer.weight.shape, x + 1, len(watch.dead)

        for is_watched in (True, True, False):
            watch.dead.clear()
            Settings.part, layer.part = watch.parts(2, is_watched)
            yield replace(vector()), of_module(vector())

    def tensors(compiled):
        dead = []
        layer = torch.nn.Linear(3, 3)
        layer.register_buffer("state", torch.ones(3))
        holder = Holder()

        @compiled
        def buffer(x):
            layer.state = x
            return x + 1, len(dead)

        @compiled
        def attribute(x):
            holder.last = x + 1
            return x * 2, len(dead)

        @compiled
        def gradient(x):
            layer.weight.grad = None
            return x * 2, len(dead)

        for fn in (buffer, attribute, gradient):
            for is_watched in (True, False, True) if fn is not gradient else (True, True):
                dead.clear()
                layer.state = state = torch.ones(3)
                holder.last = last = torch.ones(3)
                layer.weight.grad = grad = torch.ones(3, 3)
                if is_watched:
                    for tensor in (state, last, grad):
                        weakref.finalize(tensor, dead.append, 1)
                del state, last, grad
                yield fn(vector())

    def finalizers(compiled):
        holder = Holder()
        log = Finalized.log

        @compiled
        def replace(x):
            holder.part = Part("new")
            log.append("behind")
            return x + 1, [*log]

        for cls in (Finalized, Finalized, Part):
            log.clear()
            holder.part = cls("old")
            yield replace(vector())

    def suspended_generators(compiled):
        log = []

        def numbers():
            try:
                yield 1
                yield 2
            finally:
                log.append("closed")

        holder = Holder()

        @compiled
        def replace(x):
            holder.numbers = None
            return x + 1, [*log]

        for is_started in (True, True, False):
            log.clear()
            holder.numbers = numbers()
            if is_started:
                next(holder.numbers)
            yield replace(vector())

    def results_of_calls_that_are_dropped(compiled):
        dead = []

        def made():
            part = Part()
            weakref.finalize(part, dead.append, 1)
            return part

        @compiled
        def dropped(x):
            made()
            first = len(dead)
            name = made().name
            return x + 1, first, name, len(dead)

        @compiled
        def kept(x):
            found = [made()]
            first = len(dead)
            found = None
            return x + 1, first, len(dead), found

        for fn in (dropped, kept):
            for _ in range(2):
                dead.clear()
                yield fn(vector())

    def arguments_that_are_given_up(compiled):
        watch = Watch()

        @compiled
        def deleted(part, x):
            del part
            return x + 1, len(watch.dead)

        @compiled
        def replaced(part, x):
            part = part.name
            return x + 1, len(watch.dead), part

        @compiled
        def held(holder, x):
            holder = holder.part
            return x + 1, len(watch.dead), holder.name

        for fn in (deleted, replaced):
            for is_watched in (True, True, False):
                watch.dead.clear()
                yield fn(*watch.parts(1, is_watched), vector())

        def holding(part):
            made = Holder()
            made.part = part
            return made

        for is_watched in (True, True, False):
            watch.dead.clear()
            yield held(watch.watched(holding(Part())) if is_watched else holding(Part()), vector())


@deaths(sequence)
class OfPoppedElements:
    def in_a_tuple(parts, dead, x):
        first, second = parts.pop(), parts.pop()
        pair = (first, second)
        first = second = None
        before = len(dead)
        pair = pair[1:]
        return x + 1, before, len(dead)

    def in_a_closure(parts, dead, x):
        part = parts.pop()
        read = lambda: part.name  # noqa: E731
        name, before = read(), len(dead)
        part = None
        return x + 1, name, before, len(dead)

    def in_a_generator(parts, dead, x):
        def names(part):
            yield part.name
            yield 2

        waiting = names(parts.pop())
        name, before = next(waiting), len(dead)
        waiting = None
        return x + 1, name, before, len(dead)

    def in_a_new_object(parts, dead, x):
        made = Holder()
        made.part = parts.pop()
        before = len(dead)
        del made
        return x + 1, before, len(dead)

    def in_a_callee(parts, dead, x):
        def forget(part):
            del part
            return len(dead)

        return x + 1, forget(parts.pop()), len(dead)


def test_what_lives_on_elsewhere_breaks_nothing():
    class Member(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))
            self.last = self.cache = None
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            y = x * self.weight
            self.last = y.detach()
            self.mean = self.mean * 0.5 + y.detach() * 0.5
            self.cache = {"y": [y.detach()]}
            return y

    model = Member()
    watcher = weakref.finalize(model.weight, print)
    counter = CompileCounter()
    compiled = minidynamo.compile(lambda x: model(x), backend=counter, fullgraph=True)
    x = torch.ones(3)
    for _ in range(4):
        assert torch.equal(compiled(x), x)
    assert counter.frame_count == 1
    assert model.mean.tolist() == [0.9375] * 3
    watcher.detach()


def test_losses_and_averages_are_captured_once():
    averages, losses, window = {"a": torch.ones(3)}, [], collections.deque(maxlen=2)
    counter = CompileCounter()

    @minidynamo.compile(backend=counter, fullgraph=True)
    def step(x):
        averages["a"] = averages["a"] * 0.5 + x * 0.5
        losses.append(x.detach())
        window.append(x.detach())
        return x + 1

    for _ in range(4):
        step(torch.ones(3))
    assert counter.frame_count == 1 and len(losses) == 4 and len(window) == 2
    losses.clear()

    @minidynamo.compile(backend=counter, fullgraph=True)
    def forget(x):
        losses.clear()
        return x + 1

    for _ in range(3):
        losses.append(torch.ones(3))
        forget(torch.ones(3))
        assert losses == []
    assert counter.frame_count == 2
