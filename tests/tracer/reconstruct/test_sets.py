"""Programs with sets are in tests/end_to_end/language/test_python_sets.py."""

import pytest

from minidynamo.core.names import Namespace
from minidynamo.errors import InternalError
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.tracer.records.constants import key_of
from minidynamo.tracer.records.side_effects import SideEffects
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.containers import SetVariable


def test_a_set_without_history_is_no_value_of_the_program():
    made = SetVariable(dict.fromkeys(key_of(ConstantVariable(value)) for value in (1, 2)))
    with pytest.raises(InternalError, match="MD260"):
        Rebuilder(Namespace(), SideEffects(), {}, [made]).value(made)
