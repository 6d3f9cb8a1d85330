from __future__ import annotations

import pytest
import torch
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

import minidynamo
from minidynamo.tracer.polyfills import distributions as twins
from minidynamo.tracer.polyfills.distributions import class_attribute

MATRICES = {
    "identities": torch.eye(3).expand(2, 3, 3),
    "symmetric": torch.tensor([[[1.0, 2.0], [2.0, 1.0]], [[2.0, 1.0], [1.0, 2.0]]]),
    "one is not symmetric": torch.tensor([[[1.0, 0.5], [0.0, 1.0]], [[2.0, 1.0], [1.0, 2.0]]]),
    "not numbers": torch.full((2, 2), float("nan")),
    "none": torch.ones(0, 2, 2),
}


@pytest.mark.parametrize("name", MATRICES)
def test_constraints_on_matrices_hold_for_the_same_ones(name):
    value = MATRICES[name]
    for constraint, twin in (
        (constraints.symmetric, twins.is_symmetric),
        (constraints.positive_definite, twins.is_positive_definite),
    ):
        actual, expected = twin(constraint, value), constraint.check(value)
        assert torch.equal(actual, expected) and actual.dtype == expected.dtype


def test_matrices_that_are_not_square_are_left_to_torch():
    with pytest.raises(NotImplementedError):
        twins.is_symmetric(constraints.symmetric, torch.ones(2, 3))


def test_a_lazy_property_is_computed_once_with_gradients():
    class Root:
        value = torch.ones((), requires_grad=True)

        @lazy_property
        def root(self):
            return self.value.sqrt()

    lazy, root = vars(Root)["root"], Root()
    with torch.no_grad():
        made = twins.lazy_property_get(lazy, root, Root)
    assert made.requires_grad and vars(root) == {"root": made}
    assert type(twins.lazy_property_get(lazy, None, Root)) is type(Root.root)


class Halved:
    def __init__(self, value):
        self.value = value

    @lazy_property
    def half(self):
        return self.value / 2


def test_a_lazy_property_on_its_class_is_a_property():
    shown = class_attribute(vars(Halved)["half"])
    assert type(shown) is type(Halved.half) and isinstance(shown, property) and shown.fget is Halved.half.fget

    @minidynamo.compile(backend="eager", fullgraph=True)
    def asked(x):
        halved = Halved(x)
        of_class = isinstance(type(halved).half, lazy_property)
        return of_class, "half" in vars(halved), halved.half + halved.half, "half" in vars(halved)

    lazy, before, result, after = asked(torch.ones(2))
    assert (lazy, before, after) == (True, False, True) and torch.equal(result, torch.ones(2))
