"""Values to bytes and back, for good: one closed table of types, explicit registration, no surprises."""

from __future__ import annotations

from everthread.codec.schema import CURRENT_SCHEMA_VERSION, migrate
from everthread.codec.types import Code, register
from everthread.codec.values import decode, decode_plain, encode, lift, lower, revive, same

__all__ = [
    "CURRENT_SCHEMA_VERSION",
    "Code",
    "decode",
    "decode_plain",
    "encode",
    "lift",
    "lower",
    "migrate",
    "register",
    "revive",
    "same",
]
