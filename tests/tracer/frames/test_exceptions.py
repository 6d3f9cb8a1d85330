import builtins

import pytest

from minidynamo.errors import Diagnostic
from minidynamo.tracer.frames import exceptions
from minidynamo.tracer.frames.exceptions import (
    can_make,
    catch_raised,
    description,
    formats_itself,
    made,
    native_base,
    own_fields,
    tracked,
    without_message,
)
from minidynamo.tracer.frames.interpreter import Raised, set_context
from minidynamo.tracer.records.side_effects import SideEffects
from minidynamo.variables.constants import ConstantVariable
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


def test_the_class_that_makes_an_exception():
    assert native_base(Own) is KeyError and native_base(Several) is AttributeError
    assert isinstance(native_base(Several).__new__(Several, "a"), Several)


def test_what_is_known_of_an_error():
    effects = SideEffects()
    assert [item.value for item in tracked(Own("a", 1), effects, exact=True).args.items] == ["a", 1]
    assert tracked(Own("a"), effects, exact=False).args is None
    assert tracked(Own(object()), effects, exact=True).args is None
    assert not effects.journal
    assert without_message(Own).args is None and without_message(Own).python_type is Own


def test_what_an_error_keeps_beside_its_arguments():
    effects, error = SideEffects(), ImportError("no", name="part")
    error.tried = 3
    known = tracked(error, effects, exact=True)
    assert known.text == "no" and {"name", "path", "msg"} <= own_fields(ImportError) == {*known.fields}
    assert known.fields["name"].value == "part" and effects.attr(known, "tried").value == 3
    error.tried = object()
    assert tracked(error, effects, exact=True).args is None
    assert tracked(error, effects, exact=False).fields == {}
    assert not own_fields(KeyError) and not own_fields(AttributeError) and not formats_itself(KeyError)


def test_description():
    assert description(ValueError("first\nsecond")) == "ValueError: first"
    assert description(made(Own, ConstantVariable("key"))) == "Own: key"
    assert description(made(Own, TensorVariable(None, None))) == "Own"
    assert description(without_message(Own)) == "Own"


def test_the_chain_of_contexts_has_no_circle():
    first, second, third = made(Own), made(Own), made(Own)
    set_context(second, first)
    set_context(third, second)
    set_context(first, third)
    assert (first.context, second.context, third.context) == (third, None, second)
    set_context(first, first)
    set_context(first, None)
    assert first.context is third


def test_caught():
    def throw():
        raise Raised(made(Own), Diagnostic("MD202", "here"), in_callee=False)

    seen = []
    assert catch_raised(LookupError, throw, seen.append) is None
    assert [exception.cls for exception in seen] == [Own]
    assert catch_raised(LookupError, lambda: 3, seen.append) == 3
    with pytest.raises(Raised):
        catch_raised(TypeError, throw, seen.append)
