"""Temporal on threads."""
