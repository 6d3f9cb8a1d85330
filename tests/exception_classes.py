"""Owns the exception classes of tests about exceptions: with and without state of their own."""

from __future__ import annotations


class ShapeError(ValueError):
    """An exception with more state than its message."""

    def __init__(self, expected, got):
        super().__init__(f"expected {expected}, got {got}")
        self.expected = expected
        self.got = got


class Plain(Exception):
    pass
