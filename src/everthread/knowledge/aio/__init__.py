"""For async callers: the hand-written source, from which ``knowledge.sync`` is generated."""
