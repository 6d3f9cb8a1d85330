"""Compiled graphs on disk.

Owns the key of a graph, the written form, the files. Does not own the contents that a backend stores
(`backends/stored_graphs.py`). Enter at `key.key_of`, `files.read`, `files.write`.
"""
