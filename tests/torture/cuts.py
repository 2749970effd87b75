"""Cuts connections to servers, each at another moment: nothing twice, nothing lost, no answer of another's.

python -m tests.torture.cuts --server valkey --cuts 1000

Half of them are cut under a blocking store, half under tasks that are cancelled as well.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.torture._batches import arguments, seed_of

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ("postgres", "valkey")


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--server", choices=SERVERS, action="append", help="which; all by default")
    parser.add_argument("--cuts", type=int, default=1000, help="of each server")
    options = parser.parse_args()
    seed = seed_of(options)
    os.environ["EVERTHREAD_CUTS"] = str(max(options.cuts // 2, 1))
    tests = [str(ROOT / "tests" / "crash" / f"test_{name}_cuts.py") for name in options.server or SERVERS]
    return int(pytest.main(["-v", "-n", "0", "-p", "no:cacheprovider", "--seed", str(seed), *tests]))


if __name__ == "__main__":
    sys.exit(main())
