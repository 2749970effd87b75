"""What differs by colour in this adapter: how the callers of one namespace take turns."""

from __future__ import annotations

from asyncio import Lock as AsyncLock
from threading import Lock

__all__ = ["AsyncLock", "Lock"]
