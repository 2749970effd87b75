"""Pure rules of history: deltas, log positions, packs, diff, merge, chain, retention. No I/O."""
