"""The public names of minidynamo's events: subscribe with `on_event`, match `Event.kind` against `KINDS`.

The implementation, and the functions that publish, are in `core/events.py`.
"""

from minidynamo.core.events import KINDS, Event, MinidynamoNotice, on_event

__all__ = ["KINDS", "Event", "MinidynamoNotice", "on_event"]
