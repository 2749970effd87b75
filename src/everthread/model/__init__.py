"""Frozen types that every layer shares. No I/O, no rules."""
