# Generated from src/everthread/subagents/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""The async source of what subagents do to threads; ``sync`` is generated from it."""
