"""Owns classes whose attributes live in different places, for the tests in this folder."""

# The programs keep the style of users, against the advice of linters.
# ruff: noqa: RUF012


class Both:
    """A data descriptor in Python code."""

    def __get__(self, obj, cls):
        return obj.stored * 2

    def __set__(self, obj, value):
        obj.stored = value + 1


class Read:
    def __get__(self, obj, cls):
        return 7


class Thing:
    shared = 3
    both = Both()
    read = Read()
    made = [1, 2]

    def __init__(self, x):
        self.x = x

    @property
    def twice(self):
        return self.x * 2

    @twice.setter
    def twice(self, value):
        self.x = value / 2

    @staticmethod
    def static(a):
        return a + 1

    @classmethod
    def of(cls, x):
        return cls(x * cls.shared)

    def method(self, a=1):
        return self.x + a


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a
