"""Scanning and redacting, written once for both colours; ``redacting/sync`` is generated from this."""
