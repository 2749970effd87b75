# Generated from src/everthread/threads/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""Threads for async callers: the one hand-written source, from which ``threads.sync`` is generated."""
