# Generated from src/everthread/transfer/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""Moving, written once for both colours; ``moving/sync`` is generated from this."""
