"""Lazy values: external values that are guarded only when the program reads them.

Owns lazy values, lazy containers, and partial reads.
Does not own how a value is wrapped after it is read (`wrappers/`).
Enter at `lazy_value.realize_all`.
"""
