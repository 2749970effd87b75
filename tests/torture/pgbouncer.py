"""Runs the whole conformance suite, in both colours, behind PgBouncer in transaction mode.

python -m tests.torture.pgbouncer

The program comes from the system's packages (``tests.servers.others``).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def main() -> int:
    suite = Path(__file__).parents[1] / "conformance" / "pgbouncer.py"
    return int(pytest.main([str(suite), "-q", "-p", "no:cacheprovider", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
