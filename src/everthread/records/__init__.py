"""The rules of branches, entries, streams, registers and erasures, once, over the store contract."""
