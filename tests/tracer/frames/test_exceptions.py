import builtins

import pytest

from minidynamo.errors import Diagnostic
from minidynamo.tracer.frames import exceptions
from minidynamo.tracer.frames.exceptions import can_make, catch_raised, description, exception_with, without_message
from minidynamo.tracer.frames.interpreter import Raised, set_context
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.tensors import TensorVariable


class Own(KeyError):
    pass


class Several(KeyError, AttributeError):
    pass


class SeveralStates(KeyError, OSError):
    pass


def test_which_exceptions_can_be_made():
    assert can_make(Own) and can_make(ValueError) and can_make(StopIteration) and can_make(Several)
    assert (
        not can_make(OSError)
        and not can_make(SeveralStates)
        and not can_make(UnicodeDecodeError)
        and not can_make(ExceptionGroup)
    )
    assert all(getattr(builtins, cls.__name__) is cls for cls in exceptions.EXCEPTIONS)


def test_description():
    assert description(ValueError("first\nsecond")) == "ValueError: first"
    assert description(exception_with(Own, ConstantVariable("key"))) == "Own: key"
    assert description(exception_with(Own, TensorVariable(None, None))) == "Own"
    assert description(without_message(Own)) == "Own"


def test_the_chain_of_contexts_has_no_circle():
    first, second, third = exception_with(Own), exception_with(Own), exception_with(Own)
    set_context(second, first)
    set_context(third, second)
    set_context(first, third)
    assert (first.context, second.context, third.context) == (third, None, second)
    set_context(first, first)
    set_context(first, None)
    assert first.context is third


def test_caught():
    def throw():
        raise Raised(exception_with(Own), Diagnostic("MD202", "here"), in_callee=False)

    seen = []
    assert catch_raised(LookupError, throw, seen.append) is None
    assert [exception.cls for exception in seen] == [Own]
    assert catch_raised(LookupError, lambda: 3, seen.append) == 3
    with pytest.raises(Raised):
        catch_raised(TypeError, throw, seen.append)
