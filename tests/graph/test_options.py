"""The descriptions of the options: keys of backends, and the options that a callee inherits."""

from __future__ import annotations

import pytest
from torch import fx

from minidynamo.backends import registry
from minidynamo.config import config
from minidynamo.core.events import MinidynamoNotice
from minidynamo.graph.options import BackendKey, CompileOptions


def test_a_key_says_name_backend_and_settings():
    key = registry.resolve("eager").key()
    assert (key.name, key.backend, key.settings) == ("eager", registry.BUILT_IN["eager"], config.current.code_key())
    assert key == registry.resolve("eager").key() and hash(key) == hash(registry.resolve("eager").key())
    assert key != registry.resolve("aot_eager").key()


def test_a_key_follows_the_settings_but_not_those_that_change_no_code():
    compiler = registry.resolve("eager")
    before = compiler.key()
    with config.patch(verbose=True, progress="0"):
        assert compiler.key() == before
    with config.patch(fuse=False):
        assert compiler.key() != before
        assert str(compiler.key()) == "eager with fuse=False"
    assert str(before) == "eager"


def test_options_win_over_settings():
    compiler = registry.resolve("eager", {"fuse": False})
    assert compiler.key() == BackendKey("eager", registry.BUILT_IN["eager"], compiler.key().settings)
    assert dict(compiler.key().settings)["fuse"] is False
    with config.patch(fuse=True, threads=3):
        assert dict(compiler.key().settings) == dict(config.current.code_key()) | {"fuse": False}


def test_options_are_in_force_while_the_backend_works_and_only_then():
    seen = []

    def backend(gm, example_inputs):
        seen.append(config.fuse)
        return len

    graph = fx.Graph()
    graph.output(())
    with pytest.warns(MinidynamoNotice, match="MD521"):
        registry.resolve(backend, {"fuse": False}).run(fx.GraphModule({}, graph), [])
    assert seen == [False] and config.fuse


def test_a_callee_does_not_inherit_what_names_the_callers_arguments():
    options = CompileOptions(
        registry.resolve("eager"), True, frozenset({"xs"}), on_error="eager", recompile_limit=3, name="renamed"
    )
    callee = options.for_callee()
    assert (callee.steal, callee.name) == (frozenset(), None)
    assert (callee.backend, callee.fullgraph, callee.on_error, callee.recompile_limit) == (
        options.backend,
        True,
        "eager",
        3,
    )
