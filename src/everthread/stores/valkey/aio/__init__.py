"""The driver, written once, async; `sync` is generated from it."""
