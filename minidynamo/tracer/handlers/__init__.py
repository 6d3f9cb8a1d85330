"""Handlers: the meaning of calls of functions and methods during capture, one file per family.

Owns one small function per function or method, registered in a table (`records/registry.py`). Does not own polyfills of
functions in C (`polyfills/`). Enter at `records.registry.function`, the decorator that fills the table.
"""
