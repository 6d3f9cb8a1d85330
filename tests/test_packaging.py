"""The wheel holds all files that the package reads at run time, and none of the tests."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import minidynamo

ROOT = Path(__file__).parent.parent


def test_the_wheel_is_complete(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"minidynamo-{minidynamo.__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "minidynamo/errors.md" in names
    tracked = [path for path in (ROOT / "minidynamo").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    missing = sorted({str(path.relative_to(ROOT)) for path in tracked} - names)
    assert not missing, f"not in the wheel: {', '.join(missing)}"
    assert all(name.startswith(("minidynamo/", "minidynamo-")) for name in names)
