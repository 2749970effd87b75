"""What of searching waits for the store: written once, async."""
