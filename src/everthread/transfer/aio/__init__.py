"""Moving, written once for both colours; ``moving/sync`` is generated from this."""
