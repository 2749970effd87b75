"""Threads on Valkey or Redis."""
