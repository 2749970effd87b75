"""Threads for async callers: the one hand-written source, from which ``threads.sync`` is generated."""
