"""Compiles in processes where a private name of torch is missing."""

from __future__ import annotations

import pytest

from tests.compat.test_standalone import in_a_new_process

HIDDEN_ATTRIBUTE = "import torch.fx.experimental.proxy_tensor as p\ndel p.dispatch_trace.__wrapped__\n"
OTHER_FUNCTION = """
import functools, torch._subclasses.fake_tensor as f
class WithoutCode:
    function = staticmethod(f.MetaConverter.meta_tensor)
    def __get__(self, owner, cls):
        return self if owner is None else functools.partial(self.function, owner)
f.MetaConverter.meta_tensor = WithoutCode()
"""
OWN_FUNCTIONS = """
from torch.fx.experimental import proxy_tensor
assert compat.make_fx is proxy_tensor.make_fx and compat.StandaloneFakeTensorMode is compat.FakeTensorMode
compiled = minidynamo.compile(lambda x: F.softmax(x, 0).cos(), backend="aot_eager", fullgraph=True)
x = torch.randn(3, 4, requires_grad=True)
result = compiled(x)
assert result.equal(F.softmax(x, 0).cos()) and loaded()
result.sum().backward()
"""


@pytest.mark.parametrize("before", [HIDDEN_ATTRIBUTE, OTHER_FUNCTION], ids=["hidden attribute", "other function"])
def test_torchs_own_functions_run_where_a_name_is_missing(before):
    in_a_new_process(OWN_FUNCTIONS, before)
