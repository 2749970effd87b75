"""The async source of what subagents do to threads; ``sync`` is generated from it."""
