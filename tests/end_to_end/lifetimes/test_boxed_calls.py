"""The boxed calling convention: compiled graphs take a list, empty it, and free each value after its last use."""

from __future__ import annotations

import functools
import re
import warnings
import weakref

import pytest
import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

import minidynamo
from examples.memory_figure import measure
from minidynamo.autograd.aot import aot_compile
from minidynamo.core.events import MinidynamoNotice
from minidynamo.graph.boxed import make_boxed, make_boxed_func, mark_boxed
from minidynamo.testing import StorageWatch, probe

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]
ones = torch.ones


class Counting(fx.Interpreter):
    """Runs a graph and records, after each operation, the number of its live inputs."""

    def __init__(self, gm, counts):
        super().__init__(gm, garbage_collect_values=True)
        self.counts = counts

    def watch(self, inputs):
        self.storages = [StorageWeakRef(value.untyped_storage()) for value in inputs]

    def run_node(self, node):
        made = super().run_node(node)
        if node.op == "call_function":
            self.counts.append(sum(not storage.expired() for storage in self.storages))
        return made


def backend_that_counts(counts, boxed):
    """Returns aot_eager whose backward graphs record the number of their live inputs."""

    def forward(gm, inputs):
        return make_boxed(gm)

    def backward(gm, inputs):
        interpreter = Counting(gm, counts)

        def run(args):
            interpreter.watch(args)
            return interpreter.boxed_run(args)

        def run_unboxed(*args):
            interpreter.watch(args)
            return interpreter.run(*args)

        return mark_boxed(run) if boxed else run_unboxed

    return functools.partial(aot_compile, forward=forward, backward=backward, inference=forward)


def five_sines(x):
    for _ in range(5):
        x = x.sin()
    return x.sum()


@pytest.mark.parametrize("boxed", [True, False])
def test_BOX_1_saved_values_die_in_the_middle_of_a_boxed_backward(boxed, md_reset):
    counts = []
    f = minidynamo.compile(five_sines, backend=mark_backend(backend_that_counts(counts, boxed)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            counts.clear()
            x = torch.rand(8, requires_grad=True)
            f(x).backward()
            assert torch.allclose(x.grad, gradient_of_five_sines(x))
    texts = {str(w.message) for w in caught if issubclass(w.category, MinidynamoNotice)}
    if boxed:
        # Autograd holds the leaf and the gradient; four saved sines die one by one, each after its cosine.
        assert texts == set()
        assert counts[0] == 6 and counts == sorted(counts, reverse=True)
        assert set(counts) == {6, 5, 4, 3, 2}
    else:
        (text,) = texts
        assert "make_boxed_func" in text and "freed" in text
        assert set(counts) == {6}


def mark_backend(backend):
    def counting(gm, example_inputs):
        return backend(gm, example_inputs)

    return counting


def gradient_of_five_sines(x):
    x = x.detach().clone().requires_grad_()
    five_sines(x).backward()
    return x.grad


@pytest.mark.parametrize("backend", BACKENDS)
def test_BOX_2_generated_code_unpacks_clears_and_deletes(backend):
    def fn(x, y, z, unused):
        a = x + y
        b = probe(a * z)
        return b + y, z

    f = minidynamo.compile(fn, backend=backend)
    f(ones(4, requires_grad=True), ones(4), ones(4), ones(4))[0].sum().backward()
    programs = re.split(r"^# host program of ", f.code("host"), flags=re.MULTILINE)[1:]
    assert len(programs) == (1 if backend == "eager" else 2)
    for text in (re.sub(r"#.*", "", program) for program in programs):
        names = re.search(r"^ +([\w, ]+?),? = args\d*$", text, flags=re.MULTILINE)
        assert names is not None, text
        cleared = text.index(".clear()")
        assert names.start() < cleared
        returned = re.findall(r"\w+", text[text.rindex("return") :])
        steps = [step for step in re.split(r"[;\n]", text[cleared:]) if step.strip()]
        for name in names[1].split(", "):
            if name not in returned:
                uses = [at for at, step in enumerate(steps) if re.search(rf"\b{name}\b", step)]
                assert uses, f"{name} is never deleted:\n{text}"
                last = uses[-2] if len(uses) > 1 else 0
                # Directly after its last use, or at once without a use, together with all values that end at the same
                # step.
                behind = {step.split()[0] for step in steps[last + 1 : uses[-1] + 1]}
                assert behind == {"del"}, f"{name} is not deleted directly after its last use:\n{text}"


class Thing:
    pass


def is_freed(call):
    """True if the argument of `call(callee)` dies when the callee deletes its argument."""
    seen = []

    def callee(thing):
        gone = weakref.ref(thing)
        del thing
        seen.append(gone() is None)

    call(callee)
    return seen[0]


def test_BOX_3_who_keeps_an_argument_alive():
    def boxed(callee):
        def run(args):
            (thing,) = args
            args.clear()
            gone = weakref.ref(thing)
            del thing
            callee.__closure__[0].cell_contents.append(gone() is None)

        return run

    assert is_freed(lambda callee: boxed(callee)([Thing()]))
    assert is_freed(lambda callee: functools.partial(boxed(callee), [Thing()])())
    assert is_freed(lambda callee: boxed(callee)(*[[Thing()]]))
    # The negative controls: a C caller and a wrapper's own variable keep the argument.
    assert not is_freed(lambda callee: functools.partial(callee, Thing())())
    assert not is_freed(lambda callee: list(map(callee, [Thing()])))

    def wrapper(callee, thing):
        return callee(thing)

    assert not is_freed(lambda callee: wrapper(callee, Thing()))
    assert is_freed(lambda callee: callee(Thing()))


@pytest.mark.parametrize(
    "net",
    [
        {"batch": 12, "size": 112, "width": 16, "blocks": (1, 1, 1, 1)},  # smaller nets peak in a convolution
        pytest.param({"batch": 24, "size": 112}, marks=pytest.mark.slow),
    ],
    ids=["small", "the net of 18 layers"],
)
def test_BOX_4_boxing_keeps_the_peak_of_eager(net):
    timeline = measure(**net)
    eager, boxed, unboxed = (timeline[name].peak for name in ("eager", "boxed", "unboxed"))
    assert boxed <= 1.01 * eager
    assert unboxed >= 1.25 * boxed
    # Unboxed, memory keeps rising through backward.
    assert timeline["unboxed"].peak_position > 0.8 > timeline["boxed"].peak_position


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_BOX_5_a_retained_graph_gives_its_gradient_again(backend):
    f = minidynamo.compile(five_sines, backend=backend)
    x = torch.rand(8, requires_grad=True)
    y = f(x)
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    assert torch.equal(x.grad, once * 2)
    with pytest.raises(RuntimeError, match="a second time"):
        y.backward()


def deleted(xs):
    used, unused = xs
    xs.clear()
    del unused
    return probe(used) + 1


def never_mentioned(xs):
    return probe(xs[0]) + 1


def unpacked(xs):
    used, _unused = xs  # lives to the end of the function in eager
    xs.clear()
    return probe(used) + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [deleted, never_mentioned, unpacked])
def test_BOX_6_an_unused_element_dies_before_the_first_operation(fn, backend):
    f = minidynamo.compile(fn, backend=backend, steal=("xs",))
    for _ in range(2):
        xs = [ones(3), ones(4)]
        watch = StorageWatch(unused=xs[1])
        assert f(xs).tolist() == [2.0] * 3
        assert watch.seen == [[]] and xs == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_argument_that_is_not_a_list_is_refused(backend):
    counter = minidynamo.testing.CompileCounterWithBackend(backend)
    made = []

    def keep(gm, example_inputs):
        made.append(counter.backend(gm, example_inputs))
        return made[-1]

    minidynamo.compile(lambda x: x.sin(), backend=keep)(ones(3))
    with pytest.raises(TypeError, match="one list of arguments, not tuple"):
        made[0]((ones(3),))
    with pytest.raises(TypeError, match="one list of arguments, not Tensor"):
        made[0](ones(3))


def test_one_warning_per_compiled_function(md_reset):
    def plain(gm, example_inputs):
        return gm.forward

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for fn in (lambda x: x + 1, lambda x: x + 2):
            f = minidynamo.compile(fn, backend=plain)
            for size in (2, 3, 3):
                assert torch.equal(f(ones(size)), fn(ones(size)))
    assert [str(w.message).count("make_boxed_func") for w in caught] == [1, 1]


def adapted(gm, example_inputs):
    return make_boxed_func(gm.forward)


# Adapting a signature frees nothing early; the captured graph frees as a boxed program.
@pytest.mark.parametrize(("adapt", "alive"), [(adapted, ["a"]), (minidynamo.boxed_nop, [])])
def test_backends_of_authors_are_boxed_without_a_warning(adapt, alive):
    def fn(xs):
        a, b = xs
        xs.clear()
        c = a + 1
        del a
        return probe(c) * b

    f = minidynamo.compile(fn, backend=adapt)
    xs = [ones(3), ones(3)]
    watch = StorageWatch(a=xs[0])
    assert f(xs).tolist() == [2.0] * 3
    assert watch.seen == [alive]


# Lifetimes of `del x` for each way to pass an argument


def body(x):
    y = probe(x + 1)
    z = y * x
    del x
    return probe(z) + 1


class Holder:
    def method(self, x):
        return body(x)

    def __call__(self, x):
        return body(x)

    @staticmethod
    def static(x):
        return body(x)

    @classmethod
    def of_class(cls, x):
        return body(x)


class Module(torch.nn.Module):
    def forward(self, x):
        return body(x)


def starred(*args):
    y = probe(args[0] + 1)
    z = y * args[0]
    del args
    return probe(z) + 1


def keyword_only(*, x):
    y = probe(x + 1)
    z = y * x
    del x
    return probe(z) + 1


def keywords(**given):
    y = probe(given["x"] + 1)
    z = y * given["x"]
    del given
    return probe(z) + 1


def wrapped(f):
    def wrapper(x):
        return f(x)

    return wrapper


FORMS = {
    "f(T())": (body, lambda f, make: f(make())),
    "f(x=T())": (body, lambda f, make: f(x=make())),
    "f(*[T()])": (body, lambda f, make: f(*[make()])),
    "f(*(T(),))": (body, lambda f, make: f(*(make(),))),
    "f(**{'x': T()})": (body, lambda f, make: f(x=make())),
    "partial": (body, lambda f, make: functools.partial(f, make())()),
    "map": (body, lambda f, make: list(map(f, [make()]))),
    "wrapper": (body, lambda f, make: wrapped(f)(make())),
    "method": (Holder().method, lambda f, make: f(make())),
    "__call__": (Holder(), lambda f, make: f(make())),
    "static": (Holder.static, lambda f, make: f(make())),
    "class method": (Holder.of_class, lambda f, make: f(make())),
    "module": (Module, lambda f, make: f(make())),
    "*args": (starred, lambda f, make: f(make())),
    "keyword only": (keyword_only, lambda f, make: f(x=make())),
    "**given": (keywords, lambda f, make: f(x=make())),
}


def lifetimes(f, call):
    watches = []

    def make():
        x = ones(4)
        watches.append(StorageWatch(x=x))
        return x

    call(f, make)
    return watches[-1].seen


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", FORMS)
def test_a_deleted_argument_dies_no_later_than_in_eager(form, backend):
    target, call = FORMS[form]
    target = target() if isinstance(target, type) else target
    expected = lifetimes(target, call)
    f = minidynamo.compile(target, backend=backend)
    assert len(expected) == 2
    for _ in range(2):
        seen = lifetimes(f, call)
        assert len(seen) == 2
        assert all(set(ours) <= set(eager) for ours, eager in zip(seen, expected)), (seen, expected)
