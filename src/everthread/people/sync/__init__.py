# Generated from src/everthread/people/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""Erasure, in the async colour; the blocking one is generated from it."""
