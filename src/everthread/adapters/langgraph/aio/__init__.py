"""The coloured half of the LangGraph adapter, written once; ``sync`` is generated from it."""
