"""Whatever the bytes, every decoder gives a value or an error of ours, within bounds, and touches nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAYLOADS = 100_000
PROCESSES = 4


@pytest.mark.parametrize("part", range(PROCESSES))
def test_hostile_payloads(seed: int, part: int) -> None:
    script = str(Path(__file__).with_name("hostile.py"))
    done = subprocess.run(
        [sys.executable, script, str(seed + part), str(PAYLOADS // PROCESSES)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, f"seed {seed + part}: {done.stdout}{done.stderr[-2000:]}"
    assert done.stdout.strip().endswith("payloads, nothing touched, and the watch works")
