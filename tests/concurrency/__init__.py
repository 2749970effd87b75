"""Many writers at once, and a checker that judges what they saw."""
