import dis

import pytest

from minidynamo.tracer.capture.frame import register_all
from minidynamo.tracer.opcodes.table import NEVER_SEEN, OPCODES, UNSUPPORTED, opcode


def test_every_opcode_is_interpreted_or_refused_with_a_reason():
    register_all()
    here = set(dis.opmap)
    refused, absent = set(UNSUPPORTED) & here, NEVER_SEEN & here
    assert set(OPCODES) | refused | absent == here
    assert set(OPCODES).isdisjoint(refused) and set(OPCODES).isdisjoint(absent) and refused.isdisjoint(absent)
    assert all(len(reason) > 20 for reason in UNSUPPORTED.values())


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="NOP is registered twice"):
        opcode("NOP")(lambda frame, instruction: None)


def test_a_name_of_another_python_is_ignored():
    opcode("NO_SUCH_OPCODE")(lambda frame, instruction: None)
    assert "NO_SUCH_OPCODE" not in OPCODES
