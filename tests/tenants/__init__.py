"""One tenant never sees anything of another's, on any store."""
