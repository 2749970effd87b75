"""Events for async callers: the one hand-written source, from which ``events.sync`` is generated."""
