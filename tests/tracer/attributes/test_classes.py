"""Attributes of classes and `super()`."""

# The programs keep the style of users, against the advice of linters.
# ruff: noqa: UP008

from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


class Base:
    def scale(self, x):
        return x * 2

    @classmethod
    def make(cls):
        return cls()


class Derived(Base):
    def scale(self, x):
        return super().scale(x) + super(Derived, self).scale(1)

    @classmethod
    def make(cls):
        return super().make()


@programs()
class Cases:
    def methods_of_the_super_class(x):
        return Derived.make().scale(x)
