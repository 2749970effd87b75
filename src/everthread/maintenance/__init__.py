"""Verbs that a person or a scheduled job starts, as blocking code; an async store runs them on a thread."""
