"""Makes small tensors of these tests count as large ones."""

from __future__ import annotations

import pytest

from minidynamo.codegen.lowering import products
from minidynamo.codegen.memory import planner


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Makes each matrix product a call of torch, and lets small gradients be handed over."""
    monkeypatch.setattr(products, "MOST_PRODUCTS", -1)
    monkeypatch.setattr(planner, "SMALL_GRADIENTS", 0)
