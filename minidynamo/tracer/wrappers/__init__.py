"""Wrappers: what is known of a value from outside the trace, one file per kind of value."""
