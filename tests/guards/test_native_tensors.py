"""Tests of minidynamo/guards/native_tensors.py: agreement with torch's checker on every tensor."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import minidynamo
from minidynamo import compat
from minidynamo.codegen.runtime import library
from minidynamo.errors import Diagnostic, ToolchainMissing
from minidynamo.frontend.compile import compiled_record
from minidynamo.guards import native_tensors as native
from minidynamo.guards import native_walk
from minidynamo.guards.check import write_condition
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import Local
from minidynamo.guards.tensors import batched_checker, facts_of
from tests.guards.module_guards import Net, guards_of

pytestmark = pytest.mark.cpp


def _tensors() -> list[torch.Tensor]:
    """Tensors of modules: parameters, frozen parameters, buffers, and new gradients in each training step."""
    held = [nn.Parameter(torch.randn(4, 4)) for _ in range(6)]
    held += [nn.Parameter(torch.randn(4), requires_grad=False) for _ in range(2)]
    held += [torch.randn(2, 3, 4, 5), torch.tensor(3), torch.arange(4), torch.randn(2, 3, dtype=torch.complex64)]
    held += [nn.Parameter(torch.randn(4)).requires_grad_(False), torch.zeros(4, requires_grad=True)]
    return held


class Checked:
    """Tensors with our check of their original facts, next to torch's check."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors: list[Any] = tensors
        facts = [facts_of(tensor) for tensor in tensors]
        full, where, compare = batched_checker(facts), native.offsets(), native.built(native._SOURCE, "check")
        assert full is not None and where is not None and compare is not None
        self.asked = 0
        self.full = full
        self.held = native.HeldTensors(facts, self._counted, where, compare)
        self.check = self.held.check()

    def _counted(self, *tensors: Any) -> bool:
        self.asked += 1
        return self.full(*tensors)

    def says(self) -> tuple[bool, bool]:
        """Returns the answer, which equals torch's, and whether torch was called for all."""
        before, expected = self.asked, self.full(*self.tensors)
        assert self.check(*self.tensors) is expected
        return expected, self.asked > before


def _settled(tensors: list[torch.Tensor] | None = None) -> Checked:
    checked = Checked(tensors or _tensors())
    assert checked.says() == (True, True)
    assert checked.says() == (True, False)
    return checked


def test_what_is_where_is_known_here() -> None:
    assert native.offsets() is not None


Tensors = list[Any]
SURE, NOTICED, LOOKED_AGAIN = (True, False), (False, True), (True, True)


def _data(position: int, value: Callable[[], torch.Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: setattr(tensors[position], "data", value())


def _put(position: int, value: Callable[[], Any]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.__setitem__(position, value())


def _give_history(tensors: Tensors) -> None:
    tensors[12].add_(torch.ones(4, requires_grad=True))


def _swap(tensors: Tensors) -> None:
    torch.utils.swap_tensors(tensors[0], nn.Parameter(torch.randn(3, 3)))


def _swap_alike(tensors: Tensors) -> None:
    torch.utils.swap_tensors(tensors[0], nn.Parameter(torch.randn(4, 4)))


def _step(tensors: Tensors) -> None:
    tensors[0].grad = torch.ones(4, 4)
    with torch.no_grad():
        tensors[0].add_(tensors[0].grad, alpha=-0.1)


def _backward(tensors: Tensors) -> None:
    (tensors[0] @ tensors[1]).sum().backward()


def _as_inference(tensors: Tensors) -> None:
    with torch.inference_mode():
        tensors[8] = torch.randn(2, 3, 4, 5)


CHANGES: dict[str, tuple[Callable[[Tensors], object], tuple[bool, bool]]] = {
    "nothing": (lambda tensors: None, SURE),
    "values": (lambda tensors: tensors[0].data.mul_(2), SURE),
    "a gradient and a step": (_step, SURE),
    "backward": (_backward, SURE),
    "a hook": (lambda tensors: tensors[0].register_hook(lambda grad: grad), SURE),
    "an attribute": (lambda tensors: setattr(tensors[0], "tag", 1), SURE),
    "other memory": (_data(0, lambda: torch.randn(4, 4)), SURE),
    "other memory by set_": (lambda tensors: tensors[8].set_(torch.randn(2, 3, 4, 5)), SURE),
    "an offset": (_data(0, lambda: torch.randn(5, 4)[1:]), LOOKED_AGAIN),
    "another one like it": (_put(0, lambda: nn.Parameter(torch.randn(4, 4))), LOOKED_AGAIN),
    "swapped with one like it": (_swap_alike, LOOKED_AGAIN),
    "data of another dtype": (_data(0, lambda: torch.randn(4, 4, dtype=torch.float64)), NOTICED),
    "dtype of a buffer": (_data(10, lambda: torch.arange(4, dtype=torch.int32)), NOTICED),
    "data of another size": (_data(0, lambda: torch.randn(4, 5)), NOTICED),
    "data of another rank": (_data(0, lambda: torch.randn(4, 4, 1)), NOTICED),
    "data of six dimensions": (_data(0, lambda: torch.randn(4, 4, 1, 1, 1, 1)), NOTICED),
    "data with other strides": (_data(0, lambda: torch.randn(4, 4).t()), NOTICED),
    "data without strides": (_data(0, lambda: torch.randn(()).expand(4, 4)), NOTICED),
    "channels last": (_data(8, lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)), NOTICED),
    "resize_": (lambda tensors: tensors[8].resize_(5, 4, 3, 2), NOTICED),
    "resize_ to nothing": (lambda tensors: tensors[8].resize_(0), NOTICED),
    "as_strided_": (lambda tensors: tensors[8].as_strided_((2, 3, 4, 5), (0, 20, 5, 1)), NOTICED),
    "t_": (lambda tensors: tensors[0].data.t_() is tensors[0].detach().t_(), SURE),
    "transpose_": (lambda tensors: tensors[8].transpose_(0, 1), NOTICED),
    "unsqueeze_": (lambda tensors: tensors[9].unsqueeze_(0), NOTICED),
    "set_ with another size": (lambda tensors: tensors[8].set_(torch.randn(3)), NOTICED),
    "no gradients": (lambda tensors: tensors[0].requires_grad_(False), NOTICED),
    "gradients of a frozen one": (lambda tensors: tensors[6].requires_grad_(), NOTICED),
    "gradients of one frozen later": (lambda tensors: tensors[12].requires_grad_(), NOTICED),
    "gradients of a buffer": (lambda tensors: tensors[8].requires_grad_(), NOTICED),
    "a history": (_give_history, NOTICED),
    "a conjugate": (_put(11, lambda: torch.randn(2, 3, dtype=torch.complex64).conj()), NOTICED),
    "data of a conjugate": (_data(11, lambda: torch.randn(2, 3, dtype=torch.complex64).conj()), NOTICED),
    "a negative": (_put(8, lambda: torch._neg_view(torch.randn(2, 3, 4, 5))), NOTICED),
    "another device": (_put(8, lambda: torch.empty(2, 3, 4, 5, device="meta")), NOTICED),
    "sparse": (_put(8, lambda: torch.zeros(2, 3, 4, 5).to_sparse()), NOTICED),
    "an inference tensor": (_as_inference, NOTICED),
    "a class": (_put(8, lambda: nn.Parameter(torch.randn(2, 3, 4, 5), requires_grad=False)), NOTICED),
    "a class in its place": (lambda tensors: setattr(tensors[8], "__class__", nn.Buffer), NOTICED),
    "swapped": (_swap, NOTICED),
    "no tensor": (_put(3, lambda: 3), NOTICED),
    "None": (_put(3, lambda: None), NOTICED),
    "one twice": (lambda tensors: tensors.__setitem__(1, tensors[0]), NOTICED),
    "two exchanged": (lambda tensors: tensors.__setitem__(slice(0, 2), tensors[1::-1]), LOOKED_AGAIN),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(change: str) -> None:
    checked = _settled()
    changes, expected = CHANGES[change]
    changes(checked.tensors)
    assert checked.says() == expected
    assert checked.says()[0] is expected[0]


KEPT: list[Callable[[Tensors], object]] = [change for name, (change, _) in CHANGES.items() if name != "backward"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(KEPT) - 1), st.booleans()), max_size=12))
def test_after_any_changes_it_says_what_torch_says(changes: list[tuple[int, bool]]) -> None:
    checked = Checked(_tensors())
    fresh = _tensors()
    checked.says()
    for number, goes_back in changes:
        with contextlib.suppress(RuntimeError, AttributeError, TypeError, IndexError):  # the change is not reversible
            KEPT[number](checked.tensors)
        checked.says()
        if goes_back:
            checked.tensors[:] = fresh
        checked.says()
        checked.says()


@contextlib.contextmanager
def _vmapped() -> Iterator[None]:
    level = torch._C._functorch._vmap_increment_nesting(2, "error")
    assert level
    try:
        yield
    finally:
        torch._C._functorch._vmap_decrement_nesting()


class Mode(compat.TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("seen")


class QuietMode(Mode):
    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


@pytest.mark.parametrize(
    "state",
    [lambda: torch.autocast("cpu"), torch.inference_mode, _vmapped, Mode, QuietMode, torch.no_grad],
    ids=["autocast", "inference", "vmap", "mode", "quiet mode", "no_grad"],
)
def test_the_state_of_the_thread_counts_as_it_does_for_torch(state: Callable[[], Any]) -> None:
    checked = _settled()
    with state():
        checked.says()
        checked.says()
    assert checked.says() == SURE
    other = Checked(_tensors())
    with state():
        other.says()
        other.says()
    other.says()
    with state():
        other.says()


def test_what_memory_does_not_tell_torch_is_asked_about() -> None:
    base = torch.zeros(8)
    checked = _settled([*_tensors(), base[2:6], torch.randn(1, 1, 1, 1, 1, 2)])
    base.add_(torch.ones(8, requires_grad=True))  # the view requires gradients now
    assert checked.says() == NOTICED
    base.detach_()
    checked = _settled([torch.randn(1, 2, 1, 3, 1, 2), *_tensors()])
    checked.tensors[0].resize_(1, 3, 1, 2, 1, 2)  # sizes of many dimensions are stored outside the tensor
    assert checked.says() == NOTICED


def test_what_is_replaced_with_each_call_does_not_make_the_others_slow() -> None:
    checked = Checked(_tensors())
    outcomes = []
    for _ in range(30):
        checked.tensors[9] = torch.tensor(4)
        outcomes.append(checked.says())
    assert outcomes[:2] == [LOOKED_AGAIN] * 2 and outcomes[2:] == [SURE] * 28
    checked.tensors[9] = torch.tensor(4.0)
    assert checked.says() == NOTICED
    checked = Checked([*(torch.zeros(4) for _ in range(20))])
    for _ in range(5):
        checked.tensors[9] = torch.zeros(4)
        checked.says()
    checked.tensors[9] = checked.tensors[10]
    assert checked.says() == NOTICED
    checked.tensors[9] = torch.zeros(4)
    checked.tensors[0].requires_grad_()
    assert checked.says() == NOTICED


def test_what_never_stays_is_left_to_torch() -> None:
    checked = Checked(_tensors())
    for _ in range(20):
        checked.tensors = _tensors()
        assert checked.says() == LOOKED_AGAIN
    assert checked.asked < 20 + 2 * native._PATIENCE + 1
    assert checked.says() == LOOKED_AGAIN


def test_what_stayed_for_long_is_noted_anew() -> None:
    checked = _settled()
    for _ in range(3 * native._PATIENCE):
        checked.tensors = _tensors()
        assert checked.says() == LOOKED_AGAIN
        for _ in range(native._PATIENCE + 1):
            assert checked.says() == SURE


def test_it_keeps_no_tensor_alive_and_dies_alone() -> None:
    tensors = _tensors()
    facts = [facts_of(tensor) for tensor in tensors]
    full, where, compare = batched_checker(facts), native.offsets(), native.built(native._SOURCE, "check")
    assert full is not None and where is not None and compare is not None
    held = native.HeldTensors(facts, full, where, compare)
    check = held.check()
    assert check(*tensors) and check(*tensors)
    references = [weakref.ref(each) for each in (*tensors, held)]
    gc.disable()
    try:
        del tensors
        assert [reference() for reference in references] == [None] * (len(references) - 1) + [held]
        del check, held
        assert references[-1]() is None
    finally:
        gc.enable()


def test_several_threads_ask_at_once() -> None:
    checked = _settled()
    ready, answers = [torch.randn(4, 4), torch.randn(5, 4), torch.randn(4, 4)], set()

    def ask(number: int) -> None:
        tensors = list(checked.tensors)
        for k in range(300):
            if number == 0:
                tensors[0].data = ready[k % 3]
            elif number == 1:
                answers.add(checked.check(*tensors))
            else:
                tensors[9] = torch.tensor(k)
                answers.add(checked.check(*tensors))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers <= {True, False}
    checked.tensors[0].data = ready[1]
    assert checked.says()[0] is False
    checked.tensors[0].data = ready[0]
    assert checked.says()[0] is True


# Unknown memory layouts


@pytest.fixture
def unknown_places() -> Iterator[None]:
    native.offsets.cache_clear()
    yield
    native.offsets.cache_clear()


@pytest.mark.parametrize(
    ("name", "lie"),
    [
        ("address_of", lambda tensor: id(tensor)),
        ("raw_dispatch_keys", lambda tensor: 7),
        ("raw_dispatch_keys", lambda tensor: 1 / 0),
    ],
    ids=["no tensor there", "other keys", "an error"],
)
def test_where_memory_is_not_as_expected_torch_checks(
    name: str, lie: Any, unknown_places: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, name, lie)
    assert native.offsets() is None
    net = Net(8)
    condition = write_condition(guards_of(net), ("net",))
    condition.make_native()
    (slot,) = condition.tensors
    assert slot.namespace[slot.name] is slot.full
    assert eval(condition.text, dict(condition.namespace), {"net": net})


def test_modes_of_the_caller_change_nothing_about_what_is_where(unknown_places: None) -> None:
    found = native.offsets()
    for state in (lambda: torch.device("meta"), torch.inference_mode, Mode, torch.no_grad):
        native.offsets.cache_clear()
        with state():
            assert native.offsets() == found


def test_without_a_compiler_torch_checks() -> None:
    def build(source: str, entries: object) -> Any:
        raise ToolchainMissing(Diagnostic("MD501", "none"))

    native_walk.build_with(build)
    try:
        net = Net(8)
        condition = write_condition(guards_of(net), ("net",))
        condition.make_native()
        (slot,) = condition.tensors
        assert slot.namespace[slot.name] is slot.full
    finally:
        native_walk.build_with(library.load)


# The choice of a check by the guards


class Sub(torch.Tensor):
    pass


def test_few_tensors_arguments_and_classes_of_users_are_left_to_torch() -> None:
    tensors = [torch.zeros(3) for _ in range(20)]
    names = [f"x{k}" for k in range(20)]
    guards = [Guard(Local(name), GuardKind.TENSOR, facts_of(tensor)) for name, tensor in zip(names, tensors)]
    assert write_condition(guards, names).tensors == ()
    for net in (Net(5), Net(8)):
        if len(net.layers) == 8:
            net.layers[3]._parameters["bias"] = torch.zeros(4).as_subclass(Sub)
        assert write_condition(guards_of(net), ("net",)).tensors == ()
    assert len(write_condition(guards_of(Net(8)), ("net",)).tensors) == 1


def test_a_module_that_is_called_often_gets_it_and_stays_right() -> None:
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(12)))
    compiled = minidynamo.compile(net, backend="eager")
    x = torch.ones(2, 3)
    for _ in range(20):
        compiled(x)
    (entry,) = compiled_record(compiled).root().entries  # type: ignore[union-attr]
    (slot,) = entry.compiled_condition.tensors
    assert slot.namespace[slot.name] is not slot.full
    with minidynamo.testing.no_recompile():
        for parameter in net.parameters():
            parameter.data = torch.zeros_like(parameter)
        assert torch.equal(compiled(x), torch.zeros(2, 3))
        compiled(x).sum().backward()
        compiled(x)
    for parameter in net[7].parameters():
        parameter.requires_grad_(False)
    compiled(x)
    assert "requires_grad" in minidynamo.why(compiled)
    for parameter in net.parameters():
        parameter.data = parameter.data.double()
    assert compiled(x.double()).dtype == torch.float64
