"""Benchmarks: what saving, reading and sharing a thread costs beside plain SQLite and other libraries."""
