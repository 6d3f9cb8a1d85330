"""Context managers are rebuilt in their state, open or not, without side effects."""

from typing import Any

import pytest
import torch

from minidynamo.variables.callables import ContextExitVariable, ContextVariable
from tests.tracer.reconstruct.rebuilt import rebuilt


@pytest.mark.parametrize("factory, args", [(torch.set_grad_enabled, (False,)), (torch.no_grad, ())])
def test_an_open_context_manager_knows_the_mode_to_go_back_to(factory: Any, args: tuple[bool, ...]) -> None:
    leave = rebuilt(ContextExitVariable(ContextVariable(factory, args, saved=True)))
    assert torch.is_grad_enabled()
    with torch.no_grad():
        leave(None, None, None)
        assert torch.is_grad_enabled()


def test_a_context_manager_that_is_not_open_is_only_made() -> None:
    made = rebuilt(ContextVariable(torch.no_grad))
    assert type(made) is torch.no_grad
    assert torch.is_grad_enabled()
