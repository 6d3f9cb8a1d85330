"""Tests of minidynamo/guards/values.py."""

import abc
import gc
import types
import weakref

import pytest
import torch

import minidynamo
from minidynamo.guards.values import ClassChecks, brief, class_attribute, is_empty, lacks_attribute, same_value


class Base:
    shared = 1

    def method(self) -> None: ...


class Derived(Base): ...


def test_questions_about_values_and_classes() -> None:
    assert same_value(frozenset({1}), frozenset({1}))
    assert not same_value(frozenset({1}), frozenset({True}))
    assert is_empty(types.CellType())
    assert not is_empty(types.CellType(1))
    assert class_attribute(Derived, "method") is Base.__dict__["method"]
    assert lacks_attribute(Derived, "gone")
    assert not lacks_attribute(Derived, "shared")
    with pytest.raises(KeyError):
        class_attribute(Derived, "gone")


def test_brief_never_shows_the_inside_of_users_objects() -> None:
    class Loud:
        def __repr__(self) -> str:
            raise AssertionError("user code ran")

    assert brief(Loud()) == "Loud object"
    assert brief([Loud()]) == "list of 1"
    assert brief(slice(Loud())) == "slice object" and brief(slice(0, 5)) == "slice(0, 5, None)"
    assert brief(Base) == "class Base"
    assert brief(torch.nn) == "module torch.nn"
    assert brief(torch.zeros(2)) == "float32[2] on cpu"
    assert len(brief("x" * 1000)) < 60


def abstract_class():
    return abc.ABCMeta("Shape", (), {})


def test_answers_are_asked_again_behind_a_registration_only():
    Shape = abstract_class()

    class Circle:
        pass

    asked = []

    def question(cls, classes):
        asked.append(cls)
        return issubclass(cls, classes)

    checks = ClassChecks()
    checks.ask(question, Circle, (Shape, int))
    assert checks() and checks()
    assert len(asked) == 1

    class Square:
        pass

    Shape.register(Square)
    assert checks() and checks()
    assert len(asked) == 2
    Shape.register(Circle)
    assert not checks() and not checks()


def test_classes_are_not_kept_alive():
    Shape = abstract_class()

    class Circle:
        pass

    checks = ClassChecks()
    checks.ask(lambda cls, classes: classes[0], Circle, (Shape,))
    gone = weakref.ref(Circle)
    del Circle
    gc.collect()  # classes are cycles
    assert gone() is None
    Shape.register(int)
    assert checks()


def test_only_registrations_that_change_an_answer_compile_again():
    Shape = abstract_class()

    class Circle:
        pass

    @minidynamo.compile(backend="eager")
    def area(shape, x):
        return x * 2 if isinstance(shape, Shape) else x

    x = torch.ones(2)
    assert area(Circle(), x).tolist() == [1, 1]
    Shape.register(dict)
    assert area(Circle(), x).tolist() == [1, 1]
    assert area.stats.recompiles == 0
    Shape.register(Circle)
    assert area(Circle(), x).tolist() == [2, 2]
    assert area.stats.recompiles == 1


def test_lists_of_subclasses_are_guarded():
    class Base:
        size = 0

    class One(Base):
        size = 1

    @minidynamo.compile(backend="eager")
    def total(x):
        left, found = Base.__subclasses__(), 0
        while left:
            cls = left.pop()
            left += cls.__subclasses__()
            found += cls.size
        return x * found

    x = torch.ones(1)
    assert total(x).tolist() == total(x).tolist() == [1] and total.stats.recompiles == 0

    class Two(One):
        size = 2

    assert total(x).tolist() == [3] and Two in One.__subclasses__()
    assert total.stats.recompiles == 1
