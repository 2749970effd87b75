# Generated from stores/valkey/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""The driver, written once, async; `sync` is generated from it."""
