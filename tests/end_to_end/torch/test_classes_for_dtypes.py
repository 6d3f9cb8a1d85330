"""Python's classes of numbers where torch takes dtypes, and classes of tensors where it takes names of types."""

from __future__ import annotations

import torch

import minidynamo
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test("eager", "aot_eager")


@programs(lambda: torch.randn(3, requires_grad=True))
class Cases:
    def functions_that_make_tensors(x):
        made = torch.zeros(3, dtype=float), torch.full((2,), 1, dtype=bool), torch.arange(3, dtype=float)
        return *made, torch.ones_like(x, dtype=complex), torch.tensor(3, dtype=float), x.new_ones(2, dtype=int)

    def conversions(x):
        return x.to(float), x.to(dtype=int), x.to(x.device, bool), x.softmax(0, float), x.detach().sum(dtype=complex)

    @programs(lambda: (torch.randn(3), float), lambda: (torch.randn(3), int), graphs=2)
    def a_class_that_is_passed(x, kind):
        return torch.nn.functional.softmax(x, 0, dtype=float).to(kind), torch.vmap(
            lambda y: torch.ones_like(y, dtype=kind)
        )(x)

    @programs(lambda: torch.randn(3))
    def types_of_tensors(x):
        return x.type(torch.DoubleTensor), x.type(torch.BoolTensor), x.type(torch.Tensor) is x, x.type(type(x)) is x

    @programs(lambda: torch.randn(3), graphs=0, breaks=1)
    def a_class_that_is_no_type_of_tensors(x):
        try:
            return x.type(float)
        except ValueError as error:
            return str(error)


def test_a_function_in_graphs_is_given_the_class_itself():
    @minidynamo.allow_in_graph
    def scale(x, kind):
        return x * 2 if kind is float else x

    compiled = minidynamo.compile(lambda x, kind: scale(x + 1, kind), backend="eager")
    for kind, expected in ((float, 4), (int, 2)):
        assert torch.equal(compiled(torch.ones(2), kind), torch.full((2,), float(expected)))
