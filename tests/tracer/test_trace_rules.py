import functools
import importlib.util
import math

import numpy as np
import pytest
import torch

from minidynamo import allow_in_graph, compile, disable
from minidynamo.testing import assert_same_as_eager
from minidynamo.tracer.capture.frame import register_all
from minidynamo.tracer.trace_rules import Action, is_trusted_class, is_trusted_module, rule_for


def users(x):
    return x


async def coroutine(x):
    return x


@disable
def refused(x):
    return x


@torch.compiler.assume_constant_result
def is_installed(name):
    return importlib.util.find_spec(name) is not None


@allow_in_graph
def opaque_to_us(x):
    return x


@torch.compiler.allow_in_graph
def opaque_to_torch(x):
    return x


@pytest.mark.parametrize(
    ("value", "action"),
    [
        (torch.relu, Action.IN_GRAPH),
        (torch.nn.functional.layer_norm, Action.IN_GRAPH),
        (torch.nn.functional.max_pool2d, Action.IN_GRAPH),
        (torch.einsum, Action.IN_GRAPH),
        (torch.special.erf, Action.IN_GRAPH),
        (torch.linalg.norm, Action.IN_GRAPH),
        (torch.fft.rfft, Action.IN_GRAPH),
        (torch.ops.aten.relu.default, Action.HANDLER),
        (torch.zeros, Action.IN_GRAPH),
        (opaque_to_us, Action.IN_GRAPH),
        (opaque_to_torch, Action.IN_GRAPH),
        (functools.wraps(opaque_to_torch)(lambda x: opaque_to_torch(x)), Action.INLINE),
        (functools.wraps(np.polynomial.legendre.leggauss)(lambda n: n), Action.INLINE),
        (math.sqrt, Action.FOLD),
        (is_installed, Action.FOLD),
        (functools.wraps(is_installed)(lambda name: is_installed(name)), Action.INLINE),
        (len, Action.HANDLER),
        (sum, Action.POLYFILL),
        (users, Action.INLINE),
        (torch.nn.Linear.forward, Action.INLINE),
        (compile(users), Action.UNWRAP),
        (coroutine, Action.BREAK),
        (refused, Action.BREAK),
        (torch.manual_seed, Action.BREAK),
        (torch.set_num_threads, Action.BREAK),
        (np.polynomial.legendre.leggauss, Action.BREAK),
        (id.__class__, Action.BREAK),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_rules(value, action):
    register_all()
    rule = rule_for(value)
    assert rule.action is action
    assert bool(rule.reason) == (action is Action.BREAK)


def test_modules_are_made_whether_or_not_torch_compile_has_been_used():
    def program(x):
        return torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())(x)

    x = torch.ones(2)
    torch.compile(torch.relu, backend="eager")(x)  # replaces nn.Module.__init__
    assert torch.nn.Module.__init__.__name__ == "patched_init"
    assert_same_as_eager(program, lambda: x, graphs=1, breaks=0)


def test_libraries_are_trusted_and_users_are_not():
    assert is_trusted_module("torch.nn.modules.linear") and is_trusted_module("collections.abc")
    assert (
        not is_trusted_module("__main__") and not is_trusted_module("torchvision_like") and not is_trusted_module(None)
    )
    assert is_trusted_class(dict) and not is_trusted_class(type("Mine", (), {"__module__": "mine"}))


def test_methods_of_optimizers_that_torch_compile_has_marked_are_traced():
    def marked():
        raise AssertionError

    original = torch.optim.SGD._init_group
    functools.update_wrapper(marked, original)
    marked._torchdynamo_disable = True
    assert rule_for(marked).action is Action.UNWRAP
    marked.__module__ = "elsewhere"
    assert rule_for(marked).action is Action.BREAK


def test_results_that_torch_compile_may_assume_constant_are_constants():
    cached = functools.lru_cache(is_installed)

    def f(x, seen):
        seen.append(1)
        return x * 2 if cached("torch") and not is_installed("no_such_module") else x

    assert_same_as_eager(f, lambda: (torch.ones(2), []), graphs=1)
