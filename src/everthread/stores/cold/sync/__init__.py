# Generated from src/everthread/stores/cold/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""What of the cold tier waits for the store: written once, async."""
