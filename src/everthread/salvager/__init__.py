"""From a damaged store to a new one."""
