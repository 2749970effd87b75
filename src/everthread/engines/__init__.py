"""Durable engines on threads."""
