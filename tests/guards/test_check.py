"""Tests of minidynamo/guards/check.py."""

import gc
import weakref
from typing import Any

import pytest
import torch

from minidynamo.guards.check import Condition, ordered, write_condition
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import Attr, Computed, Constant, InstanceAttr, Item, Local, Source, TypeOf, global_source
from minidynamo.guards.state import current
from minidynamo.guards.tensors import facts_of
from tests.guards.module_guards import Net, guards_of, parameter_sources

K = GuardKind
STATE = Source()


def _holds(condition: Condition, **arguments: Any) -> bool:
    return bool(eval(condition.text, dict(condition.namespace), arguments))


def _tensor(source: Source, value: torch.Tensor) -> Guard:
    return Guard(source, K.TENSOR, facts_of(value))


def test_no_guards_is_always_true() -> None:
    assert write_condition([], ("x",)).text == "True"


def test_a_few_arguments_are_checked_in_one_expression() -> None:
    x, y = torch.zeros(8), torch.zeros(8)
    guards = [
        _tensor(Local("x"), x),
        _tensor(Local("y"), y),
        Guard(STATE, K.GLOBAL_STATE, current()),
        Guard(Local("n"), K.EQUALS, 3),
    ]
    condition = write_condition(guards, ("x", "y", "n"), number=2)
    parts = condition.text.split(" and ")
    assert parts[:3] == ["type(n) is int", "n == 3", "check_tensors_2(x, y)"]
    assert parts[3:5] == ["check_state_2()", "not count_function_modes_2()"]
    assert _holds(condition, x=x, y=y, n=3)
    assert not _holds(condition, x=x, y=torch.zeros(9), n=3)
    assert not _holds(condition, x=x, y=y, n=4)


def test_an_alternative_is_one_of_the_conditions() -> None:
    either = Guard(Computed("{0} == 1 or {1} == 2", (Local("n"), Local("m"))), K.RELATION, True)
    neither = Guard(Computed("{0} == 7 or {1} == 7", (Local("n"), Local("m"))), K.RELATION, False)
    condition = write_condition([either, neither, Guard(Local("s"), K.EQUALS, "s")], ("n", "m", "s"))
    assert _holds(condition, n=1, m=5, s="s") and _holds(condition, n=5, m=2, s="s")
    assert not _holds(condition, n=5, m=5, s="s") and not _holds(condition, n=7, m=2, s="s")
    assert not _holds(condition, n=1, m=5, s="t") and not _holds(condition, n=5, m=2, s="t")


def test_names_of_two_entries_do_not_meet() -> None:
    guards = [_tensor(Local("x"), torch.zeros(3)), Guard(Local("f"), K.IDENTITY, _holds)]
    first = write_condition(guards, ("x", "f"), number=0)
    second = write_condition(guards, ("x", "f"), number=1)
    assert not set(first.namespace) & set(second.namespace)


@pytest.mark.parametrize("with_tensor", [True, False])
@pytest.mark.parametrize(
    "enter", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu"), lambda: torch.device("meta")]
)
def test_interpreter_state_is_checked_both_ways(enter: Any, with_tensor: bool) -> None:
    x = torch.zeros(3)
    tensors = [_tensor(Local("x"), x)] if with_tensor else []

    def write() -> Condition:
        return write_condition([*tensors, Guard(STATE, K.GLOBAL_STATE, current())], ("x",))

    outside = write()
    assert _holds(outside, x=x)
    with enter():
        inside = write()
        assert _holds(inside, x=x)
        assert not _holds(outside, x=x)
        with enter():
            pass
    assert not _holds(inside, x=x)
    assert _holds(outside, x=x)


def test_one_default_device_is_not_another() -> None:
    with torch.device("meta"):
        condition = write_condition([Guard(STATE, K.GLOBAL_STATE, current())], ())
        assert _holds(condition)
    with torch.device("cpu"):
        assert not _holds(condition)


def test_a_condition_can_be_written_in_another_state_than_it_expects() -> None:
    x = torch.zeros(3)
    guards = [_tensor(Local("x"), x), Guard(STATE, K.GLOBAL_STATE, current())]
    with torch.no_grad():
        condition = write_condition(guards, ("x",))
        assert not _holds(condition, x=x)
    assert _holds(condition, x=x)
    assert not _holds(condition, x=torch.zeros(4))


class Holder:
    def __init__(self) -> None:
        self.items = {"a": torch.zeros(2), "b": [1, 2], "c": None}


def _holder_guards() -> list[Guard]:
    items = InstanceAttr(Local("h"), "items")
    return [
        _tensor(Item(items, "a"), torch.zeros(2)),
        Guard(Item(items, "c"), K.IDENTITY, None),
        Guard(Item(items, "b"), K.LENGTH, 2),
        Guard(Item(Item(items, "b"), 0), K.EQUALS, 1),
        Guard(items, K.DICT_KEYS, ("a", "b", "c")),
        Guard(Local("h"), K.TYPE, Holder),
    ]


def test_shared_reads_move_into_a_function_whose_locals_do_not_stay() -> None:
    condition = write_condition(_holder_guards(), ("h", "other"), name="f", number=4)
    assert condition.text == "guards_4(h)"
    check = condition.namespace["guards_4"]
    assert list(condition.namespace) == ["guards_4"]
    assert condition.function_source.startswith("def guards_4(h):")
    assert "type(h) is Holder_ref() is not None" in condition.function_source
    assert "guards_4" not in check.__globals__
    holder = Holder()
    assert check(holder)
    holder.items["b"] = [2, 2]
    assert not check(holder)
    alive = weakref.ref(holder)
    del holder
    assert alive() is None


def test_a_value_is_checked_before_what_is_read_from_it() -> None:
    depths = [guard.source.depth() for guard in ordered(_holder_guards()) if guard.kind is not K.TENSOR]
    assert depths == sorted(depths)
    first = ordered(_holder_guards())[0]
    assert (first.source, first.kind) == (Local("h"), K.TYPE)


def test_order_puts_cheap_and_often_failing_checks_first() -> None:
    x = torch.zeros(2)
    deep = Item(InstanceAttr(Local("m"), "_parameters"), "w")
    guards = [
        Guard(Local("x"), K.DISTINCT_OBJECTS, (deep,)),
        Guard(Attr(deep, "grad"), K.IDENTITY, None),
        _tensor(deep, x),
        Guard(STATE, K.GLOBAL_STATE, current()),
        Guard(TypeOf(Local("m")), K.CLASS_ATTR, ("items", None)),
        _tensor(Local("x"), x),
        Guard(Local("m"), K.TYPE, Holder),
    ]
    assert [guard.kind for guard in ordered(guards)] == [
        K.TYPE,
        K.TENSOR,
        K.GLOBAL_STATE,
        K.CLASS_ATTR,
        K.TENSOR,
        K.IDENTITY,
        K.DISTINCT_OBJECTS,
    ]


def test_equal_guards_are_checked_once() -> None:
    guards = [Guard(Local("n"), K.EQUALS, 3)] * 3 + [Guard(Local("n"), K.TYPE, int)]
    assert write_condition(guards, ("n",)).text.count("type(n) is int") == 2


def test_parameters_may_be_called_like_builtins() -> None:
    guards = [Guard(Local("type"), K.EQUALS, 3), Guard(Local("len"), K.LENGTH, 1), Guard(Local("x"), K.TYPE, int)]
    condition = write_condition(guards, ("type", "len", "x"))
    assert _holds(condition, type=3, len=[1], x=2)
    assert not _holds(condition, type=3, len=[], x=2)


def test_globals_are_read_when_the_condition_is_evaluated() -> None:
    namespace: dict[str, object] = {"rate": 2}
    condition = write_condition([Guard(global_source(namespace, "rate"), K.EQUALS, 2)], ())
    assert _holds(condition)
    namespace["rate"] = 3
    assert not _holds(condition)


def test_conditions_keep_no_user_object_alive() -> None:
    class Owned:
        def method(self) -> None: ...

    module = torch.nn.Linear(2, 2)
    guards = [
        Guard(Local("a"), K.TYPE, Owned),
        Guard(Local("b"), K.IDENTITY, Owned.method),
        Guard(Local("c"), K.IDENTITY, module),
        Guard(TypeOf(Local("a")), K.CLASS_ATTR, ("method", Owned.method)),
        _tensor(Item(InstanceAttr(Local("c"), "_parameters"), "weight"), module.weight),
    ]
    condition = write_condition(guards, ("a", "b", "c"))
    assert _holds(condition, a=Owned(), b=Owned.method, c=module)
    alive = [weakref.ref(Owned), weakref.ref(module), weakref.ref(module.weight)]
    del guards, Owned, module
    gc.collect()
    assert [reference() for reference in alive] == [None, None, None]
    assert any(reference() is None for reference in condition.watched)


def test_many_parameters_are_checked_in_one_call() -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(30)))
    layers = InstanceAttr(Local("net"), "_modules")
    guards = [
        _tensor(Item(InstanceAttr(Item(layers, name), "_parameters"), kind), getattr(layer, kind))
        for name, layer in net.named_children()
        for kind in ("weight", "bias")
    ]
    sources = [guard.source for guard in guards]
    guards.append(Guard(sources[0], K.DISTINCT_OBJECTS, tuple(sources[1:])))
    condition = write_condition(guards, ("net",))
    assert _holds(condition, net=net)
    net[7].bias = torch.nn.Parameter(torch.zeros(4))
    assert _holds(condition, net=net)
    net[7].bias = net[6].bias
    assert not _holds(condition, net=net)
    net[7].bias = torch.nn.Parameter(torch.zeros(4), requires_grad=False)
    assert not _holds(condition, net=net)


def test_constants_are_read_directly() -> None:
    box = [1]
    condition = write_condition([Guard(Item(Constant(box, "box"), 0), K.EQUALS, 1)], (), number=3)
    assert _holds(condition)
    box[0] = 2
    assert not _holds(condition)


def test_tensors_that_are_checked_together_are_found_to_be_one() -> None:
    sources = [Local("x"), Local("y")]
    guards = [
        *(_tensor(source, torch.zeros(3)) for source in sources),
        Guard(sources[0], K.DISTINCT_OBJECTS, (sources[1],)),
    ]
    condition = write_condition(guards, ("x", "y"))
    assert "is not" not in condition.text
    x = torch.zeros(3)
    assert _holds(condition, x=x, y=torch.zeros(3))
    assert not _holds(condition, x=x, y=x)


def test_what_is_passed_is_checked_before_what_a_module_holds() -> None:
    """A version that does not fit costs little: a check of eight versions takes less than three times as long as a
    check of one."""
    module = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(5)))
    parameters = [
        Item(InstanceAttr(Item(InstanceAttr(Local("self"), "_modules"), name), "_parameters"), part)
        for name in module._modules
        for part in ("weight", "bias")
    ]
    passed = Item(Local("args"), 0)
    guards = [
        Guard(passed, K.DISTINCT_OBJECTS, tuple(parameters)),
        *(_tensor(source, p) for source, p in zip(parameters, module.parameters())),
        _tensor(passed, torch.zeros(2, 3)),
        Guard(Local("args"), K.TYPE, tuple),
    ]
    condition = write_condition(guards, ("self", "args"))
    lines = condition.function_source.splitlines()
    first = next(number for number, line in enumerate(lines) if "check_tensors" in line)
    assert "check_tensors(args[0])" in lines[first] and "'_modules'" in lines[first + 1]
    assert "map(id" not in condition.function_source  # a parameter is not a plain tensor, and each batch is distinct
    assert _holds(condition, self=module, args=(torch.zeros(2, 3),))
    assert not _holds(condition, self=module, args=(torch.zeros(4, 3),))
    module[1].weight = module[0].weight
    assert not _holds(condition, self=module, args=(torch.zeros(2, 3),))


@pytest.mark.parametrize("held", [1, 2, 3, 5])
def test_few_held_tensors_are_checked_with_the_arguments(held) -> None:
    module = torch.nn.Module()
    sources = [Item(InstanceAttr(Local("m"), "_buffers"), f"b{k}") for k in range(held)]
    for source in sources:
        module.register_buffer(source.key, torch.zeros(3))
    guards = [
        _tensor(Local("x"), torch.zeros(3)),
        Guard(Local("x"), K.DISTINCT_OBJECTS, tuple(sources)),
        *(_tensor(source, torch.zeros(3)) for source in sources),
        Guard(InstanceAttr(Local("m"), "_buffers"), K.TYPE, dict),
        Guard(InstanceAttr(Local("m"), "training"), K.IDENTITY, True),
        Guard(Attr(Local("m"), "__dict__"), K.TYPE, dict),
        Guard(Local("m"), K.TYPE, torch.nn.Module),
    ]
    condition = write_condition(guards, ("x", "m"))
    text = condition.function_source
    assert text.count("check_tensors") == (1 if held < 3 else 2) and ("map(id" in text) == (held >= 3)
    before = text.partition("check_tensors")[0]
    assert before.count("is dict") == (2 if held < 3 else 0) and "training" not in before
    assert _holds(condition, x=torch.zeros(3), m=module)
    assert not _holds(condition, x=torch.zeros(4), m=module) and not _holds(condition, x=module.b0, m=module)
    assert not _holds(condition, x=torch.zeros(3), m=Holder()) and not _holds(condition, x=torch.zeros(3), m=None)
    for name in ("b0", f"b{held - 1}"):
        module._buffers[name] = torch.zeros(3, requires_grad=True)
        assert not _holds(condition, x=torch.zeros(3), m=module)
        module._buffers[name] = torch.zeros(3)
    module._buffers = type("Buffers", (dict,), {})(module._buffers)
    assert not _holds(condition, x=torch.zeros(3), m=module)


def test_an_attribute_of_a_class_is_read_once() -> None:
    class Local_:
        def forward(self) -> None: ...

    cls = Constant(Local_, "cls")
    forward = Item(Attr(cls, "__dict__"), "forward")
    guards = [
        Guard(Local("m"), K.TYPE, Local_),
        Guard(cls, K.CLASS_NAMES, ((*vars(Local_),), Local_.__bases__)),
        Guard(cls, K.CLASS_ATTR, ("forward", Local_.forward)),
        Guard(forward, K.IDENTITY, Local_.forward),
        Guard(Attr(forward, "__code__"), K.IDENTITY, Local_.forward.__code__),
    ]
    condition = write_condition(guards, ("m",))
    text = condition.function_source
    assert text.count("__dict__") == text.count("'forward'") == 1 and "type(m) is Local" in text
    assert _holds(condition, m=Local_()) and not _holds(condition, m=Holder())
    Local_.forward = lambda self: None  # type: ignore[method-assign]
    assert not _holds(condition, m=Local_())


def test_many_guards_become_a_walk_that_hands_on_what_it_has_read() -> None:
    net, x = Net(), torch.zeros(4)
    parameters = parameter_sources(net)
    guards = [
        *guards_of(net),
        _tensor(Local("x"), x),
        Guard(STATE, K.GLOBAL_STATE, current()),
        Guard(parameters[0], K.DISTINCT_OBJECTS, tuple(parameters[1:])),
        Guard(Attr(parameters[1], "grad"), K.IDENTITY, None),
    ]
    inputs = [parameters[0], Local("x"), *parameters[1:]]
    condition = write_condition(guards, ("net", "x"), inputs=inputs)
    assert condition.returns_inputs and condition.text == "guards_0(net, x)"
    lines = [line.strip() for line in condition.function_source.partition("def guards_0")[2].splitlines()]
    walk = lines.index("and (found := walk(net)) is not None")
    assert "and check_tensors(x)" in lines[:walk]
    assert lines[walk + 1 :] == [
        "and check_tensors_1(*found)",
        "and found[1].grad is None",
        "and [found[0], x, *found[1:12]]",
        ")",
    ]
    given = eval(condition.text, dict(condition.namespace), {"net": net, "x": x})
    assert all(one is other for one, other in zip(given, [net.layers[0].weight, x, *[*net.parameters()][1:]]))
    net.layers[2].bias = net.layers[1].bias
    assert not _holds(condition, net=net, x=x)
    net.layers[2].bias = torch.nn.Parameter(torch.zeros(4))
    assert _holds(condition, net=net, x=x)
    net.layers[1].bias.grad = torch.zeros(4)
    assert _holds(condition, net=net, x=x)
    net.layers[0].bias.grad = torch.zeros(4)
    assert not _holds(condition, net=net, x=x)


def test_a_name_that_a_walk_gives_is_not_taken_by_a_constant() -> None:
    def found() -> None: ...

    guards = [*guards_of(Net()), Guard(Local("f"), K.IDENTITY, found)]
    assert _holds(write_condition(guards, ("net", "f")), net=Net(), f=found)
