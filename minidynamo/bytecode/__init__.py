"""Reads code objects and makes the functions that carry a frame across a graph break."""
