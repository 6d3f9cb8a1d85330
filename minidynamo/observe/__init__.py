"""What minidynamo shows of its work.

Owns logs, progress lines, reports, the memory timeline, the command line.
Does not own the events that they subscribe to (`core/events.py`).
Enter at `logs.install`, `report.Report`, `cli.main`.
"""
