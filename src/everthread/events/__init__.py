"""The event log: streams that many writers extend, replayed, projected and consumed."""
