"""Context managers are made, and entered when they are open."""

import torch

from minidynamo.variables.contexts import ContextExitVariable, ContextVariable
from tests.tracer.reconstruct.rebuilt import rebuilt


def test_an_open_context_manager_is_entered_and_its_exit_handed_on() -> None:
    context = ContextVariable(torch.set_grad_enabled, (False,), saved=True)
    try:
        leave = rebuilt(ContextExitVariable(context))
        assert not torch.is_grad_enabled()
        leave(None, None, None)
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_a_context_manager_that_is_not_open_is_only_made() -> None:
    made = rebuilt(ContextVariable(torch.no_grad))
    assert type(made) is torch.no_grad
    assert torch.is_grad_enabled()
