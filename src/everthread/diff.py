"""What differs between two working states, and bringing the difference into a third."""

from __future__ import annotations

from everthread.working.compare import ItemChange, StateDiff, StateDiffer

__all__ = ["ItemChange", "StateDiff", "StateDiffer"]
