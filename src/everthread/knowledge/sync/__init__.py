# Generated from src/everthread/knowledge/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""For async callers: the hand-written source, from which ``knowledge.sync`` is generated."""
