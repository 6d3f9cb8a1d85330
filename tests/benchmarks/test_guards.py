from __future__ import annotations

import pytest
import torch

from benchmarks.guards import FIRST, Layers, eight_versions, module, slopes, two_tensors
from minidynamo.testing import no_recompile


@pytest.mark.filterwarnings("ignore:Guards may run slower")  # torch.compile on Python 3.13.0
def test_what_is_measured_is_compiled_once():
    assert len([*Layers(6).parameters()]) == 6
    with torch.no_grad():
        for functions in (two_tensors(), module(6), eight_versions()):
            for function in functions.values():
                function()
            with no_recompile():
                for function in functions.values():
                    function()
    assert set(eight_versions()) == {FIRST, "minidynamo"}


def test_slopes_are_taken_round_by_round():
    by_size = {100: {"minidynamo": [1.0, 2.0]}, 300: {"minidynamo": [21.0, 42.0]}, 200: {"minidynamo": [0.0, 0.0]}}
    assert slopes(by_size) == {"minidynamo": [100.0, 200.0]}
