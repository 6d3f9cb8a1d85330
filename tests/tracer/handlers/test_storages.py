"""Sizes of storages are tracked through a frame, and guarded at their initial values."""

from __future__ import annotations

import pytest
import torch

from minidynamo.graph.storage_resize import resize_storage
from minidynamo.tracer.records.traced_frame import Break
from tests.tracer.capturing import capture, targets


def given_up(x):
    x.untyped_storage().resize_(0)
    return x.untyped_storage().nbytes()


def texts(traced):
    return [guard.source.display() for guard in traced.all_guards()]


def test_a_resize_is_a_node_that_counts_as_a_write():
    traced = capture(given_up, torch.ones(4))
    (node,) = (node for node in traced.graph.graph.nodes if node.target is resize_storage)
    assert node.args[1:] == (0, False) and node.meta["mutates"] and node.meta["written_memory"]


def test_what_changes_nothing_is_no_node():
    x = torch.ones(4)
    x.untyped_storage().resize_(0)
    assert capture(given_up, x).graph is None

    def same(x):
        x.untyped_storage().resize_(16)
        return x + 1

    assert resize_storage not in targets(capture(same, torch.ones(4)))


def test_only_whether_there_is_memory_is_guarded():
    assert "x.untyped_storage().nbytes() == 0" in " ".join(texts(capture(given_up, torch.ones(4))))


def test_two_storages_are_guarded_to_be_two():
    def both(x, y):
        x.untyped_storage().resize_(0)
        y.untyped_storage().resize_(0)

    x, y = torch.ones(4), torch.ones(4)
    assert any("not in" in text for text in texts(capture(both, x, y)))
    assert isinstance(capture(both, x, x.view(2, 2)).exit, Break)


def address(x):
    return x.untyped_storage().data_ptr()


def no_size(x):
    return x.untyped_storage().resize_(-1)


def in_part(x):
    return x.untyped_storage().resize_(8)


def behind_other_data(x):
    x.data = torch.ones(2)
    return x.untyped_storage().nbytes()


@pytest.mark.parametrize(
    ("program", "code"), [(address, "MD212"), (no_size, "MD212"), (in_part, "MD219"), (behind_other_data, "MD212")]
)
def test_what_breaks(program, code):
    traced = capture(program, torch.ones(4))
    assert isinstance(traced.exit, Break) and traced.exit.diagnostic.code == code
