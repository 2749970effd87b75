"""The text that a new run needs, within a token budget."""
