"""Compiled graphs on disk.

Owns the key of a graph, its written form, the files.
Does not own what is stored for a backend (`backends/stored_graphs.py`).
Enter at `key.key_of`, `files.read`, `files.write`.
"""
