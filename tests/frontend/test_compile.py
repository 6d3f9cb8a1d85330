"""The arguments and results of `compile`, and its messages for everything else."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import io
import pickle
import warnings
import weakref

import pytest
import torch

import minidynamo
from minidynamo.core.events import MinidynamoNotice, on_event
from minidynamo.errors import ArgumentError, UnknownName
from minidynamo.frontend.compile import compiled_record
from minidynamo.testing import CompileCounter

eager = functools.partial(minidynamo.compile, backend="eager")


def plain(a: torch.Tensor, b: int = 2, *, k: int = 3) -> torch.Tensor:
    "Documented."
    return a * b + k


plain.mark = "kept"


@minidynamo.compile(backend="eager")
def decorated(x):
    return x + 1


class Scale:
    def __init__(self, factor):
        self.factor = factor

    @eager
    def method(self, x):
        return x * self.factor

    @staticmethod
    @eager
    def static_below(x):
        return x + 1

    @eager
    @staticmethod
    def static_above(x):
        return x + 1

    @classmethod
    @eager
    def class_below(cls, x):
        return x + len(cls.__name__)

    @eager
    @classmethod
    def class_above(cls, x):
        return x + len(cls.__name__)

    @property
    @eager
    def double(self):
        return torch.ones(2) * (2 * self.factor)

    def __call__(self, x):
        return x - self.factor


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        return torch.relu(self.norm(self.body(x)))


# Keywords


def test_a_stolen_argument_must_exist():
    def f(tensors):
        return tensors[0] + 1

    with pytest.raises(ArgumentError, match=r"names 'tensor', which is not an argument of .*Did you mean 'tensors'"):
        minidynamo.compile(f, steal=("tensor",))


def test_without_a_function_it_is_a_decorator():
    counter = CompileCounter()

    @minidynamo.compile(backend=counter, name="renamed")
    def f(x):
        return x + 1

    assert f(torch.ones(2)).tolist() == [2.0, 2.0] and counter.frame_count == 1
    assert minidynamo.compile(None, backend="eager")(plain)(torch.ones(1)).item() == 5
    assert "renamed" in f.guards()


def test_past_the_recompile_limit_the_frame_runs_as_written():
    counter = CompileCounter()
    f = minidynamo.compile(lambda x, n: x + n, backend=counter, recompile_limit=2, dynamic=False)
    x = torch.zeros(1)
    with pytest.warns(MinidynamoNotice, match=r"MD302 stopped compiling .* 2 versions exist") as notices:
        assert [f(x, n).item() for n in range(6)] == [0, 1, 2, 3, 4, 5]
    assert (counter.frame_count, len(notices)) == (2, 1)


def test_options_are_in_force_for_this_function_alone():
    x = torch.randn(4)
    sources = []
    stop = on_event(lambda e: sources.append(e.data["text"]) if (e.kind, e.name) == ("artifact", "loops") else None)
    program = lambda x: ((x + 1).relu() * 2).sin()  # noqa: E731
    apart = minidynamo.compile(program, backend="triton", options={"fuse": False})
    together = minidynamo.compile(program, backend="triton")
    torch.testing.assert_close(apart(x), program(x))
    torch.testing.assert_close(together(x), program(x))
    stop()
    assert minidynamo.config.fuse and len(sources) == 2
    assert "fuse=False" in str(compiled_record(apart).options.backend.key())
    assert "fuse" not in str(compiled_record(together).options.backend.key())


class Callable:
    def __call__(self, x):
        return plain(x)

    def method(self, x):
        return plain(x)


TARGETS = {
    "function": lambda: plain,
    "method": lambda: Callable().method,
    "callable": Callable,
    "partial": lambda: functools.partial(plain),
    "module": lambda: torch.nn.Threshold(3.0, 5.0),
}


@pytest.mark.parametrize("by", ["keyword", "settings"])
@pytest.mark.parametrize("kind", TARGETS)
def test_disabled_a_target_runs_eagerly_and_answers(kind, by):
    target = TARGETS[kind]()
    with minidynamo.config.patch(disable=by == "settings"):
        f = minidynamo.compile(target, disable=by == "keyword")
    assert f(torch.ones(1)).item() == 5
    record = minidynamo.stats(f)
    assert (record.calls, record.compiles, record.graphs) == (0, 0, 0)
    assert "was not recompiled" in minidynamo.why(f) and "not compiled yet" in str(minidynamo.explain(f))
    assert minidynamo.saved(f) == [] and minidynamo.freeze(f) is f
    if kind == "function":
        assert f.py_func is f.__wrapped__ is plain and f.stats is record
        assert (f.guards(), f.code(), f.breaks()) == ("", "", "plain has no graph breaks.")
        assert f.reset() is None and minidynamo.uncompile(f) is plain


def test_what_cannot_be_compiled_comes_back_if_disabled():
    with minidynamo.config.patch(disable=True):
        assert minidynamo.compile(3) == 3
        with pytest.raises(UnknownName):
            minidynamo.compile(plain, backend="nativ")
    f = eager(plain)
    with minidynamo.config.patch(disable=True):
        assert f(torch.ones(1)).item() == 5 and f.stats.compiles == 0
    assert f(torch.ones(1)).item() == 5 and f.stats.compiles == 1


# Functions and objects that can be compiled


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (3, "got int, which is not callable"),
        ("text", "got str, which is not callable"),
        (torch, "got module, which is not callable"),
        (int, "got the class int"),
        (Scale, "Compile an instance, or decorate the method"),
        (Net, "got the class Net"),
        (Scale.double, "@property above, @minidynamo.compile below"),
        (torch.optim.SGD([torch.ones(1)]), "Pass its method: minidynamo.compile(optimizer.step)"),
        (weakref.proxy(plain), "got a weak proxy\n  Pass the object itself"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_advice(target, says):
    with pytest.raises(TypeError) as caught:
        minidynamo.compile(target)
    assert says in str(caught.value) and caught.value.code == "MD104"


async def coroutine(x):
    return x


async def async_generator(x):
    yield x


def generator(x):
    yield x


class CalledItsOwnWay(torch.nn.Module):
    def __call__(self, x):
        return x + 1


class CalledWithoutItself(torch.nn.Module):
    @staticmethod
    def __call__(x):
        return x + 1


UNCHANGED = [CalledItsOwnWay(), CalledWithoutItself(), len, torch.add, list.append, [].append, torch.ops.aten.add]
UNCHANGED += [torch.ops.aten.add.Tensor]
UNCHANGED += [coroutine, async_generator, generator, functools.lru_cache(plain), torch.compile(plain, backend="eager")]


@pytest.mark.parametrize("target", UNCHANGED, ids=lambda target: getattr(target, "__name__", repr(target)))
def test_what_runs_better_as_it_is_comes_back_with_one_notice(target):
    with pytest.warns(MinidynamoNotice, match="MD105") as notices:
        assert minidynamo.compile(target) is target
        assert minidynamo.compile(target) is target
    assert len(notices) == 1


class ScaledCall(torch.nn.Linear):
    def _call_impl(self, x):
        return super()._call_impl(x) * 2


def test_what_a_class_does_around_forward_is_compiled_along():
    net, x = ScaledCall(2, 2), torch.ones(1, 2)
    expected = net(x)
    assert minidynamo.compile(net, backend="eager") is net
    assert torch.equal(net(x), expected) and minidynamo.stats(net).graphs == 1
    assert minidynamo.explain(ScaledCall(2, 2))(x).graph_count == 1


def test_a_function_behind_a_cache_is_told_where_the_cache_goes():
    with pytest.warns(MinidynamoNotice, match=r"put @lru_cache above @minidynamo\.compile"):
        minidynamo.compile(functools.lru_cache(lambda x: x))


def test_a_function_keeps_its_looks():
    f = eager(plain)
    assert type(f) is type(plain) and f.__wrapped__ is plain and f.py_func is plain
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__defaults__", "__kwdefaults__"):
        assert getattr(f, name) == getattr(plain, name)
    assert f.__annotations__ == plain.__annotations__
    assert inspect.getfullargspec(f) == inspect.getfullargspec(plain)
    assert inspect.signature(f) == inspect.signature(plain) and inspect.getsource(f) == inspect.getsource(plain)
    assert f.mark == "kept"
    assert f(torch.ones(1), k=1).item() == 3


def test_bad_calls_are_the_functions_own_errors():
    f = eager(plain)
    for arguments, keywords in (((), {}), ((1, 2, 3), {}), ((torch.ones(1),), {"q": 1})):
        with pytest.raises(TypeError) as theirs:
            plain(*arguments, **keywords)
        with pytest.raises(TypeError) as ours:
            f(*arguments, **keywords)
        assert str(ours.value) == str(theirs.value)


def test_a_compiled_function_is_compiled_from_the_original():
    first, second = CompileCounter(), CompileCounter()
    f = minidynamo.compile(plain, backend=first)
    g = minidynamo.compile(f, backend=second)
    g(torch.ones(1))
    assert g.__wrapped__ is plain and (first.frame_count, second.frame_count) == (0, 1)


def test_functions_are_pickled_by_name_and_copied():
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert copy.copy(decorated) is decorated and copy.deepcopy(decorated)(torch.zeros(1)).item() == 1


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda o, x: o.method(x), 3.0),
        (lambda o, x: Scale.method(o, x), 3.0),
        (lambda o, x: o.static_below(x), 2.0),
        (lambda o, x: Scale.static_below(x), 2.0),
        (lambda o, x: o.static_above(x), 2.0),
        (lambda o, x: Scale.static_above(x), 2.0),
        (lambda o, x: o.class_below(x), 6.0),
        (lambda o, x: Scale.class_above(x), 6.0),
        (lambda o, x: o.class_above(x), 6.0),
        (lambda o, x: o.double, 6.0),
        (lambda o, x: eager(o.method)(x), 3.0),
        (lambda o, x: eager(o)(x), -2.0),
        (lambda o, x: eager(functools.partial(plain, b=5))(x, k=1), 6.0),
    ],
)
def test_methods_partials_and_callable_objects(call, expected):
    assert call(Scale(3), torch.ones(2)).tolist() == [expected] * 2


def test_the_record_is_found_through_every_form(md_reset):
    o, x = Scale(3), torch.ones(2)
    forms = [Scale.method, o.method, Scale.static_below, o.class_below, eager(o), eager(functools.partial(plain))]
    forms += [vars(Scale)["static_above"], vars(Scale)["class_above"], eager(Net())]
    for form in forms:
        assert minidynamo.stats(form).compiles == 0
    o.method(x), Scale.static_above(x)
    assert minidynamo.stats(o.method).compiles == minidynamo.stats(vars(Scale)["static_above"]).compiles == 1
    for other in (plain, 3, Net()):
        with pytest.raises(ArgumentError, match="MD106"):
            minidynamo.stats(other)


def test_uncompile_gives_back_what_compile_was_given():
    o, module = Scale(3), Net()
    assert minidynamo.uncompile(eager(plain)) is plain
    assert minidynamo.uncompile(eager(o)) is o
    assert minidynamo.uncompile(o.method).__func__ is Scale.method.__wrapped__
    partial = minidynamo.uncompile(eager(functools.partial(plain, b=5)))
    assert (partial.func, partial.keywords) == (plain, {"b": 5})
    assert minidynamo.uncompile(vars(Scale)["class_above"]).__func__ is Scale.class_above.__wrapped__
    assert type(minidynamo.uncompile(vars(Scale)["static_above"])) is staticmethod
    assert minidynamo.uncompile(eager(module)) is module
    for compiled_no_more in (module, plain):
        with pytest.raises(ArgumentError, match="MD106"):
            minidynamo.uncompile(compiled_no_more)


# Modules


def test_a_module_stays_what_it_is():
    module, reference = Net(), Net()
    reference.load_state_dict(module.state_dict())
    keys, text, names = list(module.state_dict()), repr(module), [n for n, _ in module.named_parameters()]
    compiled = eager(module)
    assert compiled is module and type(module) is Net and isinstance(module, Net)
    x = torch.randn(5, 3)
    torch.testing.assert_close(module(x), reference(x))
    assert (list(module.state_dict()), repr(module)) == (keys, text)
    assert [n for n, _ in module.named_parameters()] == names
    assert minidynamo.stats(module).compiles == 1
    torch.testing.assert_close(module.eval()(x), reference.eval()(x))
    assert minidynamo.stats(module).recompiles == 1
    assert "training" in minidynamo.why(module)


def test_a_compiled_module_is_copied_pickled_and_saved_as_the_plain_one():
    module = eager(Net()).eval()
    x = torch.randn(5, 3)
    expected = module(x)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for other in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(file, weights_only=False),
    ):
        assert type(other) is Net
        torch.testing.assert_close(other(x), expected)
        assert minidynamo.stats(module).compiles == 1
        torch.testing.assert_close(eager(other)(x), expected)


def test_a_module_is_compiled_anew_when_compiled_again():
    module, first, second = Net(), CompileCounter(), CompileCounter()
    x = torch.randn(5, 3)
    minidynamo.compile(module, backend=first)(x)
    minidynamo.compile(module, backend=second)(x)
    minidynamo.uncompile(module)(x)
    assert (first.frame_count, second.frame_count) == (1, 1)


def test_a_module_compiled_with_two_sets_of_keywords_keeps_both_and_dies_at_once():
    module, x = Net(), torch.randn(5, 3)
    counters = CompileCounter(), CompileCounter()
    for _ in range(3):
        for counter in counters:
            minidynamo.compile(module, backend=counter)(x)
    assert [counter.frame_count for counter in counters] == [1, 1]
    gc.disable()
    try:
        reference, call = weakref.ref(module), weakref.ref(module._compiled_call_impl)
        del module
        assert reference() is None and call() is None
    finally:
        gc.enable()


def test_the_compiled_call_of_a_module_is_the_dispatcher():
    module = eager(Net())
    module(torch.randn(5, 3))
    dispatcher = compiled_record(module).root()
    assert module._compiled_call_impl is dispatcher.function
    assert dispatcher.source().startswith("def call_impl(*args, **kwargs):\n")


def test_the_compiled_call_of_a_dead_module_raises_an_error():
    module = eager(Net())
    call = module._compiled_call_impl
    del module
    with pytest.raises(AttributeError, match="NoneType"):
        call(torch.randn(5, 3))


def test_a_module_that_holds_a_compiled_module():
    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = eager(Net())

        def forward(self, x):
            return self.inner(x) + 1

    counter = CompileCounter()
    outer = minidynamo.compile(Outer().eval(), backend=counter)
    x = torch.randn(5, 3)
    torch.testing.assert_close(outer(x), Net.forward(outer.inner, x) + 1)
    assert counter.frame_count == 1 and minidynamo.stats(outer.inner).compiles == 0


# Directives for compiled functions


def test_reset_forgets_and_lets_notices_be_shown_again():
    counter = CompileCounter()
    f, g = (minidynamo.compile(fn, backend=counter) for fn in (plain, lambda x: x + 1))
    x = torch.ones(1)
    f(x), g(x)
    minidynamo.reset(f)
    assert (f.stats.compiles, g.stats.compiles, f.graphs) == (0, 1, [])
    f(x), g(x)
    assert counter.frame_count == 3
    minidynamo.reset()
    f(x), g(x)
    assert counter.frame_count == 5
    for _ in range(2):
        with pytest.warns(MinidynamoNotice, match="MD105"):
            minidynamo.compile(len)
        minidynamo.reset()


def test_a_second_positional_argument_is_named():
    with pytest.raises(ArgumentError, match=r"takes one target, and got 'eager'(?s:.*)backend='eager'"):
        minidynamo.compile(plain, "eager")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("how", ["script", "compile"])
def test_a_module_that_torch_has_compiled_comes_back_with_a_notice(how):
    linear = torch.nn.Linear(2, 2)
    module = torch.jit.script(linear) if how == "script" else torch.compile(linear, backend="eager")
    with pytest.warns(MinidynamoNotice, match="MD105 an object of class"):
        assert minidynamo.compile(module) is module


def test_an_object_that_is_not_compiled_is_shown():
    with pytest.raises(ArgumentError, match=r"MD106 expected a compiled function, method or module, got 3 \(int\)"):
        minidynamo.explain(3)


def test_messages_under_fullgraph_do_not_go_on_after_the_end_of_the_graph():
    def decides(x):
        return x + 1 if x.sum() > 0 else x

    def warns(x):
        warnings.warn("x", stacklevel=1)
        return x + 1

    for function, code in ((decides, "MD201"), (warns, "MD233")):
        with pytest.raises(minidynamo.errors.Unsupported, match=f"{code} fullgraph=True, but here the graph") as caught:
            minidynamo.compile(function, backend="eager", fullgraph=True)(torch.ones(1))
        assert "Python decides" not in str(caught.value) and "accept the break" not in str(caught.value)


def test_a_function_that_is_not_traced_is_not_said_to_need_values():
    other = torch.compile(plain, backend="eager")
    compiled = minidynamo.compile(lambda x: other(x) + 1, backend="eager")
    assert compiled(torch.ones(1)).item() == 6
    assert "torch.compile made it" in compiled.breaks() and "values of tensors" not in compiled.breaks()
