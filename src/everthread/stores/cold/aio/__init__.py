"""What of the cold tier waits for the store: written once, async."""
