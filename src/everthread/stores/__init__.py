"""Where bytes live: one contract, several stores behind it."""
