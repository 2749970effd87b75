# Generated from src/everthread/redaction/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""Scanning and redacting, written once for both colours; ``redacting/sync`` is generated from this."""
