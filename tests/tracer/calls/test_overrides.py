"""Torch functions on objects that are not tensors: the arguments of the class's `__torch_function__`."""

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


class Box:
    def __init__(self, x):
        self.x = x

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [arg.x if isinstance(arg, Box) else arg for arg in args]
        return cls(func(*args, **(kwargs or {})))


class Noted:
    """Records the arguments that torch passes."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs="none"):
        if func is torch.mul:
            return NotImplemented
        known = func is torch.sin, func is torch.Tensor.add, func is torch.nn.functional.relu
        return known, types, len(args), kwargs if kwargs == "none" else [*kwargs.items()]


NOTED = Noted()


@programs()
class Cases:
    def functions_and_methods(x):
        box = Box(x)
        made = torch.sin(box).x, torch.add(x, box, alpha=2).x
        return *made, (x + box).x, x.sub(box).x, torch.nn.functional.relu(box).x

    def what_the_class_is_asked(x):
        noted = Noted()
        return (
            x + 1,
            [torch.sin(noted), torch.add(x, noted, alpha=2), x.add(noted), x + NOTED, torch.sum(noted, 0)],
            [torch.sin(noted), torch.sin(*[noted]), x > noted],
            [torch.nn.functional.relu(noted), torch.nn.functional.relu(input=noted), torch.stack((noted,), dim=0)],
        )

    def other_arguments_of_functions_in_python(x):
        made = torch.nn.functional.cross_entropy(Noted(), x)
        return x + 1, made[:3], [name for name, _ in made[3]]

    @programs(lambda: (vector(), torch.nn.Parameter(vector())))
    def parameters_beside_an_object(x, weight):
        return x + 1, torch.einsum("i,i->", weight, Noted())[:3], torch.einsum("i,i->", x, Noted())[:3]


class Other(Noted):
    pass


@pytest.mark.parametrize("program", [lambda x: torch.add(Other(), Noted()), lambda x: torch.stack([Other(), Noted()])])
def test_what_several_classes_make_of_it_is_left_to_python(program):
    compiled = minidynamo.compile(program, backend="eager")
    assert compiled(torch.ones(3)) == program(torch.ones(3))


def test_not_implemented_raises():
    compiled = minidynamo.compile(lambda x: torch.mul(x, Noted()), backend="eager")
    with pytest.raises(TypeError, match=r"no implementation|Multiple dispatch"):
        compiled(torch.ones(3))


def test_functions_in_python_hand_on_numbers_that_vary_beside_what_they_set_themselves():
    def program(box, number):
        made = torch.nn.functional.softmax(box, dim=number, dtype=torch.float64)
        return made.x, torch.nn.functional.softmax(NOTED, number)

    f = minidynamo.compile(program, backend="eager", fullgraph=True, dynamic=True)
    for number in (0, 1, -1):
        box = Box(torch.arange(6.0).view(2, 3))
        made, expected = f(box, number), program(box, number)
        assert torch.equal(made[0], expected[0]) and made[1] == expected[1]


def test_numbers_that_vary_are_handed_on():
    def program(x):
        made = torch.nn.functional.softmax(NOTED, dim=x.shape[0])
        return x + 1, dict(made[3])["dim"]

    compiled = minidynamo.compile(program, backend="eager", dynamic=True)
    for length in (3, 5, 6):
        assert compiled(torch.ones(length))[1] == length


def test_the_method_is_guarded():
    class Changing:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return 1

    def program(x):
        return x + torch.sin(Changing())

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1)).item() == 2
    Changing.__torch_function__ = classmethod(lambda cls, func, types, args=(), kwargs=None: 5)
    assert compiled(torch.ones(1)).item() == 6
