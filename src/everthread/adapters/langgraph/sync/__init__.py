# Generated from adapters/langgraph/aio/__init__.py by tools/twin.py: change that, then run: make twin
"""The coloured half of the LangGraph adapter, written once; ``sync`` is generated from it."""
