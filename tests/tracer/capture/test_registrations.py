"""Tests of minidynamo/tracer/capture/registrations.py: handlers that are found without a list."""

import sys
from pathlib import Path

from minidynamo import tracer
from minidynamo.tracer.capture.frame import register_all


def test_every_opcode_handler_polyfill_and_wrapper_is_imported():
    register_all()
    (folder,) = map(Path, tracer.__path__)
    files = [path for room in ("opcodes", "handlers", "polyfills", "wrappers") for path in folder.glob(f"{room}/*.py")]
    names = {".".join(["minidynamo.tracer", *path.relative_to(folder).with_suffix("").parts]) for path in files}
    missing = {name.removesuffix(".__init__") for name in names} - sys.modules.keys()
    assert len(files) > 40 and not missing
