"""Python functions that are traced instead of functions written in C.

Owns plain Python functions with the signatures and results of the originals.
Does not own functions that need trackers (`handlers/`).
Enter at `records.registry.polyfill`, `records.registry.cannot_trace`.
"""
