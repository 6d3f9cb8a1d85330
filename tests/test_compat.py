from __future__ import annotations

import sys

import torch

from minidynamo import compat


def test_version_flags_match_the_running_python():
    assert (sys.version_info >= (3, 12), sys.version_info >= (3, 13)) == (compat.PY312, compat.PY313)


def test_every_name_is_there_on_this_torch():
    missing = [name for name, value in vars(compat).items() if value is None]
    assert not missing


def test_what_a_gradient_function_keeps_is_gone_when_backward_has_freed_it() -> None:
    x, index = torch.randn(3, requires_grad=True), torch.tensor([0, 2])
    for result in (x[index], x * index.sum(), torch.stack([x, x]).prod(0)):
        result.sum().backward()
        assert not any(isinstance(kept, torch.Tensor) for kept in compat.kept_by(result.grad_fn))
