"""One store behind the agents that people already write: a module for each framework, named like it."""
