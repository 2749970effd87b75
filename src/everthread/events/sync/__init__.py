# Generated from src/everthread/events/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""Events for async callers: the one hand-written source, from which ``events.sync`` is generated."""
