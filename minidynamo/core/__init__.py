"""What every other folder stands on.

Owns files that minidynamo writes, events, locks, names, counters, directives of the program, the scope of a compile.
Does not own settings (`config.py`), messages (`errors.py`), anything that knows a graph.
Enter at `artifacts.write`, `events.publish`, `stats.Stats`.
"""
