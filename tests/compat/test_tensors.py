"""Tests of minidynamo/compat/tensors.py."""

from __future__ import annotations

import threading

import pytest
import torch

from minidynamo import compat
from minidynamo.compat import tensors


def test_tensors_are_checked_in_one_go():
    check = compat.tensor_guards((torch.ones(2, 3), torch.ones(4))).check
    assert check(torch.zeros(2, 3), torch.zeros(4))
    assert not check(torch.zeros(2, 3), torch.zeros(5))
    open_size = compat.tensor_guards((torch.ones(2, 3),), ([[2, None]], [[None, 1]])).check
    assert open_size(torch.zeros(2, 7)) and not open_size(torch.zeros(3, 7))


def test_what_is_known_of_the_memory_of_tensors():
    x = torch.ones(4)
    view = x[1:]
    assert compat.memory_of(view) == compat.memory_of(x) != compat.memory_of(torch.ones(4))
    assert compat.memory_of(x.to_sparse()) != compat.memory_of(x.to_sparse())
    one = torch.ones(())
    assert compat.owns_its_memory(one) and not compat.owns_its_memory(x[0])
    assert compat.empty_strided_cpu((2, 3), (1, 2), torch.float32).stride() == (1, 2)


@pytest.mark.parametrize("function", [compat.have_memory_in_common, tensors.have_storage_in_common])
def test_memory_that_written_tensors_have_in_common_with_others(function):
    x, y, z = torch.ones(4), torch.ones(4), torch.ones(4)
    moved = x.view(4)
    moved.data = torch.ones(4)
    assert not function((x,), (y, z, 3, None)) and not function((x, y), ()) and not function((x,), (moved,))
    assert function([x], [x[2:]]) and function((x,), [x[2:]]) and function([x], (x[2:],))
    assert function((x,), (y, x[2:])) and function((x, x[:1]), (y,)) and function((x, y), (3, z, y.detach()))
    assert not function((x,), (y, y[1:]))


@pytest.mark.filterwarnings("ignore:Named tensors")
def test_names_of_dimensions():
    assert not compat.has_names(torch.ones(2, 3))
    if hasattr(torch.Tensor, "names"):
        assert compat.has_names(torch.ones(2, 3, names=("row", "column")))


def test_writes_are_counted():
    x, inference = torch.ones(2), torch.inference_mode()(torch.ones)(2)
    compat.increment_version([x, inference])
    assert compat.version_of(x) == x._version == 1
    assert compat.version_of(inference) is None
    compat.set_versions([x], [5])
    assert x._version == 5


def test_generators_have_different_addresses():
    generator = torch.Generator()
    assert compat.address_of_generator(generator) != compat.address_of_generator(torch.Generator())


def test_writes_are_counted_of_normal_tensors_and_of_the_data_of_others():
    normal = torch.ones(2).add_(1)
    with torch.inference_mode():
        uncounted, replaced = torch.ones(2), torch.ones(2)
    replaced.data = torch.ones(2)
    assert compat.version_of(normal) == 1 and compat.version_of(uncounted.data) == 0
    assert not replaced.is_inference() and compat.version_of(replaced) is compat.version_of(uncounted) is None


def test_fake_tensors_of_constants_know_their_values():
    with compat.FakeTensorMode() as mode:
        constant, like_an_input = torch.tensor(3), mode.from_tensor(torch.ones(2))
        known = compat.known_constant(constant)
    assert known is not None and known.item() == 3
    assert isinstance(like_an_input, compat.FakeTensor) and compat.known_constant(like_an_input) is None
    assert compat.known_constant(torch.ones(2)) is None


def test_what_is_slow_to_import_is_imported_elsewhere():
    before = threading.active_count()
    compat.load_fake_tensors()
    compat.load_symbols()
    assert threading.active_count() == before
