"""Compiled graphs on disk: what a graph is found by, how it is written down, and the files."""
