from __future__ import annotations

import sys

from minidynamo import compat


def test_version_flags_match_the_running_python():
    assert (sys.version_info >= (3, 12), sys.version_info >= (3, 13)) == (compat.PY312, compat.PY313)


def test_every_name_is_there_on_this_torch():
    missing = [name for name, value in vars(compat).items() if value is None]
    assert not missing
