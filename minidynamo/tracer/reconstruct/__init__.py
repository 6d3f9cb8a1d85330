"""Rebuilding values after a graph has run, one file per family; importing it registers all."""

from minidynamo.tracer.reconstruct import callables, containers, contexts, iterators, numbers, objects, sets

__all__ = ["callables", "containers", "contexts", "iterators", "numbers", "objects", "sets"]
