"""The async driver, written by hand."""
