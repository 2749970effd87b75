# Generated from src/everthread/sessions/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""Sessions for async callers: the one hand-written source, from which ``sessions.sync`` is generated."""
