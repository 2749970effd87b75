# Generated from src/everthread/search/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""What of searching waits for the store: written once, async."""
