"""Training steps of whole models: eager's values, the known number of graphs, at most eager's memory."""

from __future__ import annotations

import pytest

from tests.models.cases import CASES, rotating
from tests.models.table import check
from tests.models.training import compared

pytestmark = [pytest.mark.cpp, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", rotating(CASES))
def test_training_steps_are_eagers(name, md_reset, request):
    runs = compared(CASES[name])
    wrong = [f"{backend}: {line}" for backend, run in runs.items() for line in run.differences]
    assert not wrong, "\n".join(wrong)
    check(name, runs, update=request.config.getoption("--update-golden"))
