"""The test suites of the frameworks themselves, run with our classes in the place of theirs."""
