"""Tests of minidynamo/compat: properties of all its names."""

from __future__ import annotations

from minidynamo import compat


def test_every_name_is_there_on_this_torch():
    missing = [name for name, value in vars(compat).items() if value is None and not name.startswith("__")]
    assert not missing and compat.OpOverload and compat.PY312 is not None
