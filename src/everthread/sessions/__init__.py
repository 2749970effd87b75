"""One run of an agent on a thread, and the ledger of what it did to the world."""
