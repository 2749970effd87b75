# Generated from src/everthread/engines/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""Steps of engines for async callers: the one hand-written source, from which ``engines.sync`` is
generated."""
