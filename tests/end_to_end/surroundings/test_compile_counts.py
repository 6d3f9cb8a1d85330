"""The compile counts of realistic programs in twenty calls: a changing value costs one compile, or none.

Each program is a generator that compiles a function, calls the function, and yields the results. torch.compile needs as
many compiles for the same calls or more (1 for `optional_tensor` and 2 for `mode_by_name`, where it does not count the
version without operations).
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import threading
import weakref

import pytest
import torch
from torch import nn

import minidynamo
from tests.end_to_end.programs import Counted

CALLS = 20
# Generator functions with the parameter `compile`, which call the compiled function.
compiles = Counted()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.0)
        self.calls = 0
        self.history = []
        self.scale = 1.0
        self.verbose = False

    def forward(self, x):
        return self.drop(torch.relu(self.norm(self.lin(x))))


class Counting(Net):
    def forward(self, x):
        self.calls += 1
        return self.lin(x) * 2


class CountingInArithmetic(Net):
    def forward(self, x):
        self.calls = self.calls + 1
        return self.lin(x) / self.calls


class EveryTenth(Net):
    def forward(self, x):
        self.calls += 1
        y = self.lin(x)
        return y * 2 if self.calls % 10 == 0 else y


class RunningAverage(Net):
    def __init__(self):
        super().__init__()
        self.average = 0.0

    def forward(self, x, loss):
        self.average = 0.9 * self.average + 0.1 * loss
        return self.lin(x) * self.average


class Warmup(Net):
    def forward(self, x):
        self.calls += 1
        factor = min(1.0, self.calls / 10)
        return self.lin(x) * factor


class Cosine(Net):
    def forward(self, x):
        self.calls += 1
        return self.lin(x) * (0.5 * (1 + math.cos(math.pi * self.calls / 20)))


class Ring(Net):
    """A ring buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ring", torch.zeros(8, 4))
        self.position = 0

    def forward(self, x):
        self.ring[self.position] = x.mean(0)
        self.position = (self.position + 1) % 8
        return self.lin(x)


class Slots(Net):
    def forward(self, x):
        self.history.append(x.mean())
        self.calls += 1
        return self.lin(x)


def module_calls(cls, *more):
    def program(compile):
        module = cls()
        compiled = compile(module)
        for i in range(CALLS):
            yield compiled(torch.ones(2, 4) * i, *(value(i) for value in more))

    return program


for _cls, _expected, *_more in (
    *((Counting, 2), (CountingInArithmetic, 2), (EveryTenth, 3), (RunningAverage, 2, lambda i: 1.0 / (i + 1))),
    *((Warmup, 2), (Cosine, 2), (Ring, 2), (Slots, 2)),
):
    compiles[_cls.__name__] = (module_calls(_cls, *_more), _expected)


@compiles(2)
class Counters:
    def global_counter(compile):
        state = {"step": 0}

        @compile
        def step(x):
            state["step"] += 1
            return x * state["step"]

        for _ in range(CALLS):
            yield step(torch.ones(3))

    def closure_counter(compile):
        count = 0

        @compile
        def step(x):
            nonlocal count
            count += 1
            return x + count

        for _ in range(CALLS):
            yield step(torch.ones(3))

    def class_counter(compile):
        class Model:
            calls = 0

            def step(self, x):
                Model.calls += 1
                return x * self.calls

        model = Model()
        step = compile(lambda x: model.step(x))
        for _ in range(CALLS):
            yield step(torch.ones(3))

    def step_argument(compile):
        step = compile(lambda x, i: x * i)
        for i in range(2, CALLS + 2):
            yield step(torch.ones(3), i)

    def learning_rate(compile):
        update = compile(lambda p, g, lr: p - lr * g)
        for i in range(CALLS):
            yield update(torch.ones(3), torch.ones(3), 0.1 * 0.9**i)

    @compiles(4)
    def state_by_parameter(compile):
        state, parameters = {}, [torch.ones(2 + place) for place in range(5)]

        @compile
        def update(parameter):
            if parameter not in state:
                state[parameter] = torch.zeros_like(parameter)
            state[parameter].add_(parameter)
            return state[parameter] * 2

        for _ in range(CALLS // len(parameters)):
            for parameter in parameters:
                yield update(parameter)


@compiles(2)
class Training:
    @compiles(1)
    def training_loop(compile):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        compiled = compile(net)
        for i in range(CALLS):
            optimizer.zero_grad()
            loss = compiled(torch.ones(3, 4) * i + torch.eye(3, 4)).square().mean()
            loss.backward()
            optimizer.step()
            yield loss.detach()

    def last_smaller_batch(compile):
        net = Net()
        compiled = compile(net)
        for _epoch in range(4):
            for size in (8, 8, 8, 8, 5):
                yield compiled(torch.ones(size, 4) + torch.eye(size, 4))

    def train_and_eval(compile):
        net = Net()
        compiled = compile(net)
        for i in range(CALLS):
            net.train(i % 5 != 4)
            yield compiled(torch.eye(4))

    def train_and_eval_with_other_batches(compile):
        net = Net()
        compiled = compile(net)
        for i in range(CALLS):
            net.train(i % 5 != 4)
            with torch.set_grad_enabled(net.training):
                yield compiled(torch.eye(4) if net.training else torch.eye(4)[: 2 + i % 3])

    @compiles(1)
    def moving_average_of_weights(compile):
        net, average = Net(), Net()

        @compile
        def update(decay):
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), net.parameters()):
                    mine.lerp_(theirs, 1 - decay)
            return next(average.parameters()).sum()

        for _ in range(CALLS):
            yield update(0.99)

    @compiles(3)
    def early_stopping(compile):
        @dataclasses.dataclass
        class State:
            best: float = math.inf
            bad: int = 0

        state = State()

        @compile
        def check(x, loss):
            if loss < state.best:
                state.best = loss
                state.bad = 0
            else:
                state.bad += 1
            return x * state.bad

        for i in range(CALLS):
            yield check(torch.ones(2), abs(10.0 - i))

    def gradient_accumulation(compile):
        net = Net()

        @compile
        def loss_of(x, last):
            loss = net(x).square().mean()
            return loss * 2 if last else loss

        for i in range(CALLS):
            yield loss_of(torch.eye(4), i % 4 == 3)


@compiles(2)
class Generation:
    def growing_sequence(compile):
        logits = compile(lambda tokens, weight: (tokens.float() @ tokens.float().T).tril().sum(-1) * weight)
        tokens = torch.ones(2, 3)
        for _ in range(CALLS):
            yield logits(tokens, 2.0)
            tokens = torch.cat([tokens, tokens[-1:] * 0.5])

    @compiles(4)
    def growing_cache(compile):
        @compile
        def attend(q, cache):
            k, v = cache
            if k is None:
                k, v = q, q
            else:
                k, v = torch.cat([k, q]), torch.cat([v, q])
            return torch.softmax(q @ k.T, -1) @ v, (k, v)

        cache = (None, None)
        for _ in range(CALLS):
            out, cache = attend(torch.ones(1, 4), cache)
            yield out

    def prefix_of_a_static_cache(compile):
        cache = torch.zeros(32, 4)

        @compile
        def attend(q, position):
            cache[position] = q[0]
            k = cache[: position + 1]
            return torch.softmax(q @ k.T, -1) @ k

        for i in range(2, CALLS + 2):
            yield attend(torch.ones(1, 4), i)

    def cache_by_shape(compile):
        masks = {}

        @compile
        def masked(x):
            key = tuple(x.shape)
            if key not in masks:
                masks[key] = torch.ones(x.shape).tril()
            return x * masks[key]

        for _ in range(CALLS):
            yield masked(torch.ones(3, 3))

    @compiles(3)
    def images_of_several_sizes(compile):
        conv = nn.Conv2d(1, 2, 3)
        compiled = compile(lambda x: conv(x).relu().mean((2, 3)))
        for i in range(CALLS):
            yield compiled(torch.ones(1 + i % 2, 1, 6 + i % 4, 7 + i % 3))


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


class Flags(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass
class Config:
    scale: float = 2.0
    bias: bool = True
    name: str = "base"


class Activated(nn.Module):
    """Creates its own functions, one of which refers to the module."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.activation = lambda x: x * 2
        self.table = {"scaled": lambda x, by=3: x * self.weight * by}

    def forward(self, x):
        return self.table["scaled"](self.activation(x))


class Local(threading.local):
    def __init__(self):
        self.enabled = False


@compiles(1)
class Caches:
    """State keyed by modules, parameters and objects, as in caches of keys and values, and in optimizers."""

    def by_module(compile):
        net = Net().eval().requires_grad_(False)
        outputs = {layer: torch.zeros(3, 4) for layer in (net.lin, net.norm)}

        @compile
        def step(x):
            for layer in outputs:
                outputs[layer] = outputs[layer] * 0.5 + layer(x)
            return outputs[net.norm] * 2

        for _ in range(CALLS):
            yield step(torch.ones(3, 4))

    @compiles(2)
    def that_grows(compile):
        net, cache = Net().requires_grad_(False), {}

        @compile
        def step(x):
            new = net.lin(x)
            cache[net] = torch.cat([cache[net], new]) if net in cache else new
            return torch.softmax(new @ cache[net].T, -1) @ cache[net]

        for _ in range(CALLS):
            yield step(torch.ones(3, 4))

    def by_parameter(compile):
        parameters = [*Net().requires_grad_(False).lin.parameters()]
        averages = {parameter: parameter * 0 for parameter in parameters}

        @compile
        def step():
            for parameter in parameters:
                averages[parameter] = averages[parameter] * 0.9 + parameter
            return averages[parameters[0]].sum()

        for _ in range(CALLS):
            yield step()

    def by_object_with_a_weak_reference(compile):
        key = Net()
        reference, table = weakref.ref(key), {key: torch.zeros(3)}

        @compile
        def step(x):
            table[key] = table[key] + x
            return table[key] * 2

        for _ in range(CALLS):
            yield step(torch.ones(3))
        assert reference() is key

    def per_thread(compile):
        local = Local()
        step = compile(lambda x: x * 2 if local.enabled else x + 1)
        for _ in range(CALLS):
            yield step(torch.ones(3))

    def outputs_in_a_queue(compile):
        seen, net = collections.deque(maxlen=4), Net().eval()
        net.lin.register_forward_hook(lambda module, args, out: seen.append(out))
        step = compile(net)
        for _ in range(CALLS):
            yield step(torch.ones(3, 4)).detach()
        assert len(seen) == 4


WHY = {
    "train_and_eval": ("object `self.norm.training`: expected True, got False", "train() and eval()"),
    "optional_tensor": ("tensor `mask`: expected float32[3] on cpu, got None", "With and without this argument"),
    "mode_by_enum": ("object `mode`: expected Mode.FAST, got Mode.EXACT", "Each of its few values"),
    "mode_by_name": ("value of `mode`: expected 'sum', got 'none'", "Each value has a version"),
    "dtypes": ("tensor `x`: expected float64[3] on cpu, got int64[3] on cpu", "Each dtype has a version"),
    "tensors_with_and_without_gradient": ("requires_grad False, not True", "x.detach()"),
    "cache_by_shape": ("keys of `masks`: expected (3, 3) not among them, got (3, 3)", "With and without this key"),
    "list_of_varying_length": ("length of `xs`: expected 2, got 3", "stack them into one tensor"),
    "EveryTenth": ("relation `((1 + self.calls) % 10) != 0`: expected to hold", "Each side of a condition"),
    "growing_sequence": (
        "expected float32[2, 3] on cpu, got float32[3, 3] on cpu",
        "symbolic from its second value on",
    ),
    "attribute_toggled": ("object `self.doubled`: expected True, got False", "no more follow when all have been seen"),
    "config_value_changes": ("value of `config.scale`: expected 1.0, got 2.0", "an input from its second value on"),
    "growing_cache": ("object `cache[0]`: expected None, got float32[1, 4] on cpu", "With and without this value"),
}


@compiles(2)
class Arguments:
    def optional_tensor(compile):
        compiled = compile(lambda x, mask=None: x if mask is None else x * mask)
        for i in range(CALLS):
            yield compiled(torch.ones(3), None if i % 2 else torch.ones(3))

    @compiles(1)
    def order_of_keywords(compile):
        compiled = compile(lambda x, *, a, b: x * a + b)
        for i in range(CALLS):
            x = torch.ones(3)
            yield compiled(x, a=2, b=3) if i % 2 else compiled(x, b=3, a=2)

    def extra_keywords(compile):
        f = compile(lambda x, **options: x * options.get("scale", 1) if options.get("on", True) else x)
        for i in range(CALLS):
            yield f(torch.ones(3), scale=2) if i % 2 else f(torch.ones(3), name=f"call {i}")

    @compiles(1)
    def order_of_a_dict(compile):
        compiled = compile(lambda batch: batch["x"] * batch["y"])
        for i in range(CALLS):
            x, y = torch.ones(3), torch.ones(3) * i
            yield compiled({"x": x, "y": y} if i % 2 else {"y": y, "x": x})

    @compiles(1)
    def dict_with_other_entries(compile):
        compiled = compile(lambda batch: batch["x"] * 2)
        for i in range(CALLS):
            yield compiled({"x": torch.ones(3), "id": f"sample {i}", f"extra {i}": i})

    @compiles(3)
    def list_of_varying_length(compile):
        compiled = compile(lambda xs: torch.stack(xs).sum(0))
        for i in range(CALLS):
            yield compiled([torch.ones(3)] * (1 + i % 3))

    @compiles(1)
    def one_of_a_list(compile):
        compiled = compile(lambda pair, settings: pair[0] * settings[1])
        for i in range(CALLS):
            yield compiled([torch.ones(3), i], [i, 2, "text"])

    @compiles(3)
    def mode_by_name(compile):
        @compile
        def reduce(x, mode):
            if mode == "mean":
                return x.mean()
            return x.sum() if mode == "sum" else x

        for i in range(CALLS):
            yield reduce(torch.ones(3), ("mean", "sum", "none")[i % 3])

    def mode_by_enum(compile):
        compiled = compile(lambda x, mode: x * 2 if mode is Mode.FAST else x * 3)
        for i in range(CALLS):
            yield compiled(torch.ones(3), Mode(1 + i % 2))

    @compiles(3)
    def flags(compile):
        compiled = compile(lambda x, flags: (x * 2 if Flags.A in flags else x) + (1 if Flags.B in flags else 0))
        for i in range(CALLS):
            yield compiled(torch.ones(3), (Flags.A, Flags.B, Flags.A | Flags.B)[i % 3])

    @compiles(1)
    def config_object(compile):
        compiled = compile(lambda x, config: x * config.scale + (1 if config.bias else 0))
        for i in range(CALLS):
            yield compiled(torch.ones(3), Config(name=f"run {i}"))

    def config_value_changes(compile):
        compiled = compile(lambda x, config: x * config.scale + (1 if config.bias else 0))
        for i in range(CALLS):
            yield compiled(torch.ones(3), Config(scale=1.0 + i))

    @compiles(3)
    def dtypes(compile):
        compiled = compile(lambda x: x * 2 + 1)
        for i in range(CALLS):
            yield compiled(torch.ones(3, dtype=(torch.float32, torch.float64, torch.int64)[i % 3]))

    def tensors_with_and_without_gradient(compile):
        compiled = compile(lambda x: x * 2)
        for i in range(CALLS):
            yield compiled(torch.ones(3, requires_grad=i % 2 == 0)).detach()

    def attribute_toggled(compile):
        net = Net()
        net.eval()

        class Wrapper(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = net
                self.doubled = False

            def forward(self, x):
                return self.inner(x) * 2 if self.doubled else self.inner(x)

        module = Wrapper()
        compiled = compile(module)
        for i in range(CALLS):
            module.doubled = i % 2 == 0
            yield compiled(torch.eye(4))

    def attribute_number_changes(compile):
        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.temperature = 1.0

            def forward(self, x):
                return torch.softmax(x / self.temperature, -1)

        module = Scaled()
        compiled = compile(module)
        for i in range(CALLS):
            module.temperature = 1.0 + i
            yield compiled(torch.eye(4))

    @compiles(1)
    def many_instances(compile):
        class Scale:
            def __init__(self, name):
                self.name = name
                self.by = 2

        compiled = compile(lambda x, scale: x * scale.by)
        for i in range(CALLS):
            yield compiled(torch.ones(3), Scale(f"scale {i}"))

    @compiles(1)
    def many_modules_of_one_kind(compile):
        layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(CALLS))
        compiled = compile(lambda layer, x: layer(x).relu())
        for layer in layers:
            yield compiled(layer, torch.eye(4))

    @compiles(1)
    def modules_with_functions_of_their_own(compile):
        layers = nn.ModuleList(Activated() for _ in range(CALLS))
        compiled = compile(lambda layer, x: layer(x).relu())
        for layer in layers:
            yield compiled(layer, torch.eye(3))

    @compiles(1)
    def callables(compile):
        compiled = compile(lambda x, f: f(x) + 1)
        for _ in range(CALLS):
            yield compiled(torch.ones(3), lambda x: x * 2)

    @compiles(1)
    def history_in_a_closure(compile):
        losses, table, names = [], {}, collections.deque(maxlen=3)

        @compile
        def step(x):
            losses.append(x.sum())
            table["last"] = x
            names.append("step")
            return x * 2

        for i in range(CALLS):
            yield step(torch.ones(3) * i)
        assert len(losses) == CALLS and len(names) == 3

    def print_what_happens(compile):
        class Talking(Net):
            def forward(self, x):
                self.calls += 1
                if self.verbose and self.calls % 5 == 0:
                    print(f"call {self.calls}")
                return self.lin(x)

        module = Talking()
        compiled = compile(module)
        for _ in range(CALLS):
            yield compiled(torch.eye(4))

    def slices_that_move(compile):
        compiled = compile(lambda x, start: x[start : start + 4] * 2)
        for i in range(2, CALLS + 2):
            yield compiled(torch.arange(64.0), i)

    def number_of_heads_from_a_shape(compile):
        compiled = compile(lambda x: x.view(x.shape[0], x.shape[1], 2, -1).transpose(1, 2).reshape(x.shape[0], -1))
        for i in range(CALLS):
            yield compiled(torch.ones(2, 3 + i, 8))

    def batch_and_length_vary(compile):
        compiled = compile(lambda x, w: torch.softmax(x @ w, -1).sum(1))
        for i in range(CALLS):
            yield compiled(torch.ones(2 + i, 30 - i, 4), torch.ones(4, 4))


@pytest.mark.parametrize("name", compiles)
def test_compiles(name):
    program, expected = compiles[name]
    compiled = []

    def compile(target):
        compiled.append(minidynamo.compile(target, backend="eager", recompile_limit=CALLS))
        return compiled[-1]

    torch.manual_seed(0)
    results = [*program(compile)]
    (target,) = compiled
    stats = minidynamo.stats(target)
    assert stats.compiles == expected, minidynamo.why(target)
    torch.manual_seed(0)
    for mine, eager in zip(results, program(lambda target: target), strict=True):
        torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize("name", WHY)
def test_why_names_the_value_the_line_and_what_to_do(name):
    compiled = []

    def compile(target):
        compiled.append(minidynamo.compile(target, backend="eager"))
        return compiled[-1]

    collections.deque(compiles[name][0](compile), maxlen=0)
    text = minidynamo.why(compiled[0])
    difference, advice = WHY[name]
    assert difference in text and advice in text, text
    assert "test_compile_counts.py:" in text and "^" in text
