"""Tests of plugins that aren't among the locked packages run in environments of their own:
``python -m tests.suites.temporal_plugins``."""

from __future__ import annotations

from importlib.util import find_spec

APART = {"openai": "temporalio.openai_agents", "langgraph": "temporalio.langgraph"}
collect_ignore = [f"test_{name}_plugin.py" for name, package in APART.items() if find_spec(package) is None]
