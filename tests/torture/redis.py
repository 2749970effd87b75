"""Runs the whole conformance suite, in both colours, on a Redis server.

python -m tests.torture.redis

The program comes from the system's packages (``tests.servers.others``).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def main() -> int:
    suite = Path(__file__).parents[1] / "conformance" / "redis.py"
    return int(pytest.main([str(suite), "-q", "-p", "no:cacheprovider", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
