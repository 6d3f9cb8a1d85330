"""Verbs of capture: a symbolic interpreter of bytecode that writes a graph, guards and a journal of side effects."""
