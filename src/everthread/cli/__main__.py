"""``python -m everthread.cli``."""

from __future__ import annotations

from everthread.cli.main import main

main()
