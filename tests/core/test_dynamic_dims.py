"""Declarations about a tensor stay with the tensor."""

from __future__ import annotations

import torch

from minidynamo.core.dynamic_dims import Dimension, declare, declared


def test_the_last_declaration_holds() -> None:
    x = torch.zeros(2, 3)
    assert declared(x) == {}
    declare(x, 0, Dimension(True))
    declare(x, 1, Dimension(True, 2, 8))
    declare(x, 0, Dimension(False))
    assert declared(x) == {0: Dimension(False), 1: Dimension(True, 2, 8)}
    assert declared(x.clone()) == {}


def test_what_was_declared_to_torch_holds_too() -> None:
    x = torch.zeros(2, 3)
    x.__dict__["_dynamo_dynamic_indices"] = {1}
    x.__dict__["_dynamo_static_indices"] = {0}
    assert declared(x) == {0: Dimension(False), 1: Dimension(True)}
