"""Sessions for async callers: the one hand-written source, from which ``sessions.sync`` is generated."""
