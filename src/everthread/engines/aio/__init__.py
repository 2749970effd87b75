"""Steps of engines for async callers: the one hand-written source, from which ``engines.sync`` is
generated."""
