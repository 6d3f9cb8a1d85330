"""Output about minidynamo's work.

Owns logs, progress lines, reports, the memory timeline, the command line. Does not own the events (`core/events.py`).
Enter at `logs.install`, `report.Report`, `cli.main`.
"""
