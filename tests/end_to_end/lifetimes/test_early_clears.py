"""Tensors in dicts, attributes, nested lists and variables that the program empties die when eager's do."""

from __future__ import annotations

import collections

import pytest
import torch

import minidynamo
from minidynamo.testing import CompileCounterWithBackend, StorageWatch, assert_same_as_eager, probe
from tests.end_to_end.programs import rows_of

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]
ones = torch.ones


class Plain:
    def __init__(self):
        self.x, self.y = ones(3), ones(3)


class Slots(Plain):
    __slots__ = ("x", "y")


class Guarded(Plain):
    def __getattribute__(self, name):
        return object.__getattribute__(self, name)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)


class OwnDict(dict):
    def __setitem__(self, key, value):
        raise AssertionError("not called for")


class Buffers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("x", ones(3))
        self.register_buffer("y", ones(3))


class Lists:
    def __init__(self):
        self.items = [ones(3), ones(3)]


class OfDicts:
    def taken_out(d):
        out = probe(d.pop("x") + 1)
        return probe(out + d.pop("y"))

    def deleted(d):
        out = d["x"] + 1
        del d["x"]
        out = probe(out) + d["y"]
        del d["y"]
        return probe(out)

    def cleared(d):
        x, y = d["x"], d["y"]
        d.clear()
        out = x + 1
        del x
        out = probe(out) + y
        del y
        return probe(out)

    def taken_in_a_loop(d):
        out = torch.zeros(3)
        for key in list(d):
            out = probe(out + d.pop(key))
        return out


def written_as_well(d):
    out = probe(d.pop("x") + 1)
    out = probe(out + d.pop("y"))
    d.update(z=out * 2, x=out)
    return out


class OfObjects:
    def attributes_bound_to_none(o):
        out = o.x + 1
        o.x = None
        out = probe(out) + o.y
        o.y = None
        return probe(out)

    def attributes_deleted(o):
        out = o.x + 1
        del o.x
        out = probe(out) + o.y
        delattr(o, "y")
        return probe(out)


class OfLists:
    def taken_out_of_a_list(o):
        out = probe(o.items.pop(0) + 1)
        return probe(out + o.items.pop(0))

    def nones_in_a_list(o):
        out = o.items[0] + 1
        o.items[0] = None
        out = probe(out) + o.items[1]
        o.items[1] = None
        return probe(out)


def taken_out_of_a_deque(q):
    out = probe(q.popleft() + 1)
    out = probe(out + q.popleft())
    q.append(2)
    return out


def pair():
    return {"x": ones(3), "y": ones(3)}


def dict_of(cls):
    return lambda: cls(pair())


DICTS = [pair, dict_of(collections.OrderedDict), lambda: collections.defaultdict(list, pair()), dict_of(OwnDict)]
CASES = [
    *((fn, make) for fn in rows_of(OfDicts) for make in DICTS),
    *((written_as_well, make) for make in DICTS[:3]),
    *((fn, make) for fn in rows_of(OfObjects) for make in (Plain, Slots, Guarded, Buffers)),
    *((fn, Lists) for fn in rows_of(OfLists)),
    *((taken_out_of_a_deque, lambda n=n: collections.deque([ones(3), ones(3), *range(n)], n + 2)) for n in (1, 3)),
]


def tensors_in(made):
    if isinstance(made, dict):
        return [made["x"], made["y"]]
    held = made.items if isinstance(made, Lists) else made
    return [*held][:2] if isinstance(held, list | collections.deque) else [held.x, held.y]


def state_of(made):
    """Returns the contents, with the order of keys."""
    if isinstance(made, dict | collections.deque):
        return repr(made)
    slots = [getattr(made, name, "nothing") for name in getattr(made, "__slots__", ())]
    return repr([slots, made.__dict__])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn, make", CASES)
def test_they_die_as_in_eager(fn, make, backend):
    counter = CompileCounterWithBackend(backend)
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    seen, states, results = {}, {}, {}
    for name, call in (("eager", fn), ("compiled", compiled), ("again", compiled)):
        made = make()
        watch = StorageWatch(**dict(zip("xy", tensors_in(made))))
        results[name], states[name], seen[name] = call(made), state_of(made), watch.seen
    assert seen["compiled"] == seen["again"] == seen["eager"] == [["y"], []]
    torch.testing.assert_close(results["compiled"], results["eager"])
    assert states["compiled"] == states["again"] == states["eager"]
    assert counter.frame_count == 1


def many_taken_out(d):
    out = torch.zeros(3)
    for key in range(20):
        out = out + d.pop(key)
    return probe(out)


kept_global = None


def of_a_global(x):
    global kept_global
    taken, kept_global = kept_global, None
    out = x + taken
    del taken
    return probe(out)


def of_a_cell():
    kept = None

    def put():
        nonlocal kept
        kept = ones(3)
        return kept

    def take(x):
        nonlocal kept
        taken, kept = kept, None
        out = x + taken
        del taken
        return probe(out)

    return put, take


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_inputs_variables_and_gradients(backend):
    def put():
        global kept_global
        kept_global = ones(3)
        return kept_global

    put_in_cell, of_cell = of_a_cell()
    for make, fn in ((put, of_a_global), (put_in_cell, of_cell)):
        compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
        for _ in range(2):
            watch = StorageWatch(kept=make())
            assert compiled(ones(3)).tolist() == [2.0] * 3 and watch.seen == [[]]
    assert kept_global is None

    def step(p):
        gradient, p.grad = p.grad, None
        out = p.detach() - gradient
        del gradient
        return probe(out)

    p, compiled = ones(3, requires_grad=True), minidynamo.compile(step, backend=backend, fullgraph=True)
    many = minidynamo.compile(many_taken_out, backend=backend, fullgraph=True)
    for _ in range(2):
        p.grad = ones(3)
        watch = StorageWatch(gradient=p.grad)
        assert compiled(p).tolist() == [0.0] * 3 and p.grad is None and watch.seen == [[]]
        d = {key: ones(3) for key in range(20)}
        watch = StorageWatch(**{f"v{key}": value for key, value in d.items()})
        assert many(d).tolist() == [20.0] * 3 and d == {} and watch.seen == [[]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_needed_lives(backend):
    def program(d, o):
        x = d.pop("x")
        out = probe(x + o.x)
        d["kept"], o.x = x, None
        return out

    for fn in (program, minidynamo.compile(program, backend=backend)):
        d, o = pair(), Plain()
        x = d["x"]
        fn(d, o)
        assert d["kept"] is x and [*d] == ["y", "kept"] and o.x is None


def test_elements_counted_from_the_end_stay_where_others_go():
    def program(o):
        h = o.items[-1] + o.items[0]
        o.items.pop(0)
        return h + o.items[-1]

    def all_gone(o):
        h = o.items[-1] + o.items[-2]
        del o.items[:]
        return h

    for fn in (program, all_gone):
        compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
        for n in (2, 2, 3):
            left = []
            for call in (fn, compiled):
                o = Lists()
                o.items[:] = [ones(3) * k for k in range(n)]
                left.append((call(o).tolist(), repr(o.items)))
            assert left[0] == left[1]


# Errors


def waited_for(d, o, i):
    x, y = d.pop("x"), o.x
    o.x = None
    try:
        return (x + y)[i]
    except IndexError:
        return x + len(d) + (o.x is None)


def left(d, o, i):
    x, y = d["x"], o.x
    o.x = None
    del d["x"]
    return (x + y)[i]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [waited_for, left])
def test_errors_find_the_state_of_eager(fn, backend):
    def called_with(position):
        return lambda: (pair(), Plain(), torch.tensor([position]))

    assert_same_as_eager(fn, called_with(1), called_with(7), called_with(2), backend=backend)


@torch.library.custom_op("test_early_clears::interrupted", mutates_args=())
def interrupted(x: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    if now:
        raise KeyboardInterrupt
    return x.clone()


@interrupted.register_fake
def _(x, now):
    return torch.empty_like(x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_held", [True, False])
def test_an_interrupted_graph_leaves_no_empty_place(is_held, backend):
    def program(d, xs, now):
        x = d.pop("x") + xs.pop()
        return interrupted(x, now) + d.pop("y") + xs.pop()

    compiled = minidynamo.compile(program, backend=backend)
    compiled(pair(), [ones(3), ones(3)], torch.tensor(False))
    d, xs = pair(), [ones(3), ones(3)]
    held = [*d.values(), *xs] if is_held else []  # keeps all alive
    with pytest.raises(KeyboardInterrupt):
        compiled(d, xs, torch.tensor(True))
    assert [*d] == (["x", "y"] if is_held else ["y"]) and len(xs) == (2 if is_held else 1)
    assert all(value.tolist() == [1.0] * 3 for value in [*d.values(), *xs])
    del held
