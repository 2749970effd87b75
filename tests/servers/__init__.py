"""Real servers for tests: started when a test first asks, one for all test processes, stopped at the end."""
