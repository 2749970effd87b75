# Generated from src/everthread/working/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""Working state for async callers: the one hand-written source, from which ``working.sync`` is generated."""
