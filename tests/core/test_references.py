"""Tests of minidynamo/core/references.py: our weak references are invisible to programs."""

import weakref

import torch

from minidynamo.core.references import Reference
from minidynamo.tracer.capture.deaths import watchers


def test_a_reference_of_ours_does_not_watch():
    value = torch.ones(2)
    ours = Reference(value)
    assert ours() is value and watchers(value) == []
    theirs = weakref.ref(value)
    assert watchers(value) == [theirs]
    del value
    assert ours() is None
