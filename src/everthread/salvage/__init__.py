"""Bringing what can be saved of a damaged store into a new one."""
