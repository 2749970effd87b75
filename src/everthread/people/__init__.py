"""Data that belongs to persons."""
