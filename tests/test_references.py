"""Tests of minidynamo/references.py: our weak references are no program's."""

import weakref

import torch

from minidynamo.guards.deaths import watchers
from minidynamo.references import Reference


def test_a_reference_of_ours_does_not_watch():
    value = torch.ones(2)
    ours = Reference(value)
    assert ours() is value and watchers(value) == []
    theirs = weakref.ref(value)
    assert watchers(value) == [theirs]
    del value
    assert ours() is None
