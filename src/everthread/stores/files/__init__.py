"""A store in a folder: append-only JSON lines that a person can read, and that git can compare."""
