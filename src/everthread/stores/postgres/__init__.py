"""Stores in a PostgreSQL database."""
