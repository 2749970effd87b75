"""Agents of frameworks with plugins for Temporal, run with and without the payload driver. Each program runs
in an environment of its own, with its framework; ``tests.torture.payloads`` starts them."""
