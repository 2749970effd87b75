"""Runs the whole conformance suite, in both colours, on a Valkey cluster of three nodes on loopback.

python -m tests.torture.cluster
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def main() -> int:
    suite = Path(__file__).parents[1] / "conformance" / "cluster.py"
    return int(pytest.main([str(suite), "-q", "-p", "no:cacheprovider", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
