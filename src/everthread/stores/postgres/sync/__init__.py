# Generated from stores/postgres/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""The async driver, written by hand."""
