"""Try a handler of scheduled events in a test: a real endpoint in this process, on virtual time.

With pytest, ask for the fixture `scheduled_events`; with unittest or anything else, use `ScheduledEvents` as a context
manager. Needs ``pip install forewarn[testing]``.
"""

from forewarn.testing.aio import AsyncScheduledEvents
from forewarn.testing.event import ScheduledEvent
from forewarn.testing.sync import ScheduledEvents

__all__ = ["AsyncScheduledEvents", "ScheduledEvent", "ScheduledEvents"]
