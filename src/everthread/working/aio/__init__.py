"""Working state for async callers: the one hand-written source, from which ``working.sync`` is generated."""
