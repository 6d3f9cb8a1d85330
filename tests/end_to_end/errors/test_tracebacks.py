"""Tracebacks of errors in compiled code: the frames that eager has, and none of minidynamo."""

import sys
import traceback

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.config import config
from tests.end_to_end.programs import rows_of

X = torch.ones(1, 2)


def frames_of(error):
    """Returns file, line and function of each frame, without the frames of torch's two ways into a module."""
    found = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    return [frame for frame in found if not (frame[2].endswith("_call_impl") and frame[0].endswith("module.py"))][1:]


def outcome(function, *args):
    try:
        function(*args)
    except Exception as error:
        return type(error), str(error), frames_of(error)
    raise AssertionError


def fail():
    raise ValueError("mine")


class Failing(nn.Module):
    def forward(self, x):
        return self.helper(x + 1)

    def helper(self, y):
        if y.sum() > 0:
            fail()
        return y


class Programs:
    def shapes(x):
        return x @ torch.ones(7, 7)

    def beyond_a_break(x):
        y = x.sin()
        print(end="")
        y = y * 2
        return y @ torch.ones(7, 7)

    def in_a_callee(x):
        def inner(z):
            print(end="")
            return z + fail()

        return inner(x.sin())

    def in_a_method(x):
        return Failing().helper(x) + 1

    def in_a_module(x):
        return nn.Sequential(nn.Identity(), Failing())(x) + 1

    def in_a_loop(x):
        for k in range(4):
            print(end="")
            if k == 2:
                x = x @ torch.ones(7, 7)
        return x

    def in_a_generator(x):
        def values():
            yield x + 1
            print(end="")
            fail()

        return sum(values())

    def in_a_comprehension(x):
        print(end="")
        return [one / 0 for one in (1, 2)], x

    def in_a_finally(x):
        try:
            print(end="")
            return x @ torch.ones(7, 7)
        finally:
            print(end="")

    def raised_again(x):
        try:
            print(end="")
            fail()
        except ValueError as error:
            raise LookupError("other") from error
        return x

    def through_a_library(x):
        return sorted([x, x], key=lambda one: fail())

    def with_effects(x):
        log.append(1)
        y = x.sin()
        return y.view(7)

    def key_of_a_dict(x):
        return {}["missing"] + x


log = []


@pytest.mark.parametrize("backend", ["eager", pytest.param("native", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("program", rows_of(Programs))
def test_a_traceback_has_the_frames_of_eager(program, backend):
    expected = outcome(program, X)
    compiled = minidynamo.compile(program, backend=backend)
    for _ in range(3):
        assert outcome(compiled, X) == expected


@pytest.mark.parametrize("backend", ["eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_a_module_has_the_frames_of_eager(backend):
    model, compiled = (nn.Sequential(nn.Identity(), Failing()) for _ in range(2))
    minidynamo.compile(compiled, backend=backend)
    for _ in range(3):
        assert outcome(compiled, X) == outcome(model, X)


def test_a_frozen_function_and_a_disabled_one():
    compiled = compiled_with(X)
    frozen = minidynamo.freeze(compiled)
    disabled = minidynamo.compile(sometimes, backend="eager", disable=True)
    for function in (frozen, disabled):
        assert outcome(function, -X) == outcome(sometimes, -X)


def sometimes(x):
    print(end="")
    if not (x > 0).all():
        fail()
    return x


def compiled_with(x):
    compiled = minidynamo.compile(sometimes, backend="eager")
    compiled(x)
    return compiled


def test_a_handler_of_the_program_sees_the_frames_of_eager():
    found = []

    def program(x):
        def inner(y):
            print(end="")
            return y @ torch.ones(7, 7)

        try:
            return inner(x.sin())
        except RuntimeError:
            found.append([frame[:3] for frame in traceback.extract_tb(sys.exc_info()[2])])
            return x

    program(X)
    for _ in range(2):
        minidynamo.compile(program, backend="eager")(X)
    assert found[0] == found[1] == found[2] and len(found[0]) == 2


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return fail()


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_errors_of_backward(backend):
    def hooked(x):
        x = x * 2
        x.register_hook(lambda gradient: fail())
        return x.sin()

    for program in (hooked, lambda x: FailsInBackward.apply(x).sin()):
        for function in (minidynamo.compile(program, backend=backend), program):
            x = X.clone().requires_grad_()
            with pytest.raises(ValueError, match="mine") as caught:
                function(x).sum().backward()
            names = [(frame.filename, frame.name) for frame in traceback.extract_tb(caught.value.__traceback__)]
            assert (__file__, "fail") == names[-1]
            assert not [name for name in names if "minidynamo/" in name[0] or "importlib_bootstrap" in name[0]]


def test_an_error_in_a_graph_has_a_note_and_no_frame():
    compiled = minidynamo.compile(lambda table, i: table[i] * 2, backend="aot_eager")
    compiled(torch.ones(3), torch.tensor([1]))
    with pytest.raises(IndexError) as caught:
        compiled(torch.ones(3), torch.tensor([5]))
    assert len(traceback.extract_tb(caught.value.__traceback__)) == 1
    assert "table[i] * 2" in caught.value.__notes__[0]


def test_all_frames_are_shown_on_request():
    compiled = compiled_with(X)
    with config.patch(verbose=True):
        _, _, verbose = outcome(compiled, -X)
    assert [frame for frame in verbose if "importlib_bootstrap" in frame[0]]
    assert not [frame for frame in outcome(compiled, -X)[2] if "importlib_bootstrap" in frame[0]]


def test_an_error_of_minidynamo_itself_keeps_its_frames(monkeypatch):
    compiled = compiled_with(X)
    monkeypatch.setattr("minidynamo.frontend.dispatcher.Dispatcher._is_mode_active", None)
    with pytest.raises(TypeError) as caught:
        compiled(torch.ones(1, 2, dtype=torch.float64))
    assert any(frame.name == "_resolve_locked" for frame in traceback.extract_tb(caught.value.__traceback__))
