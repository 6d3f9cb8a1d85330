"""Provides the foundations of every other folder.

Owns files that minidynamo writes, events, locks, names, counters, directives of the program, the scope of a compile.
Does not own settings (`config.py`), messages (`errors.py`), or anything that handles a graph. Enter at
`artifacts.write`, `events.publish`, `stats.Stats`.
"""
