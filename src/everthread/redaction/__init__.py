"""Finding texts that nobody marked as personal, and taking them out of history."""
