import abc
import gc
import weakref

import torch

import minidynamo
from minidynamo.guards.class_checks import ClassChecks


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
