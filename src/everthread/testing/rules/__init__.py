"""The rules of threads as tests, one module per group of them, for ``everthread.testing.conformance``."""
