"""The tables that Everthread declares to a store, and what each one holds.

Every stored value ends with a checksum over its key and content; see :mod:`everthread.records.checked`.
"""

from __future__ import annotations

from everthread.stores.interface import Table

# ── numbered: owner is a branch, log or stream ──

#: branch, seq (for a pack: its last seq): one version, or the net change of a pack.
ROW = Table(1, "row", numbered=True)
#: branch, last seq: the versions inside a pack, tombstones of pruned versions; never needed to open a head.
PAST = Table(2, "past", numbered=True)
#: branch, seq: the whole document as of that version.
KEYFRAME = Table(3, "keyframe", numbered=True)
#: log, last position: a chunk of items.
ITEM = Table(4, "item", numbered=True)
#: log, last position: four bytes per item of the same chunk, to find repeated ids.
FINGERPRINT = Table(5, "fingerprint", numbered=True)
#: stream, seq: one event; empty where the newest event was trimmed.
EVENT = Table(6, "event", numbered=True, bits=36)
#: 0, branch number: the identity of a branch and its fork point.
BRANCH = Table(7, "branch", numbered=True)

# ── named: owner is a namespace unless stated ──

#: thread name: the newest version and everything needed to commit on top of it.
HEAD = Table(16, "head", followed=True)
#: owner 0; branch uid: branch number.
UID = Table(17, "uid", ordered=False)
#: owner branch; ``shape`` and ``reach``: 8 random bytes, replaced when rows change or a new reference
#: appears.
MARK = Table(18, "mark", guarded=True)
#: owner branch; number of a fork (8 bytes).
CHILD = Table(19, "child")
#: owner branch; commit key hash: the sequence numbers of the versions that carry it.
COMMIT_KEY = Table(20, "commit_key")
#: digest of a metadata name and value (16 bytes), then thread name.
METADATA = Table(21, "metadata")
#: expiry in microseconds (8 bytes), then thread name.
EXPIRY = Table(22, "expiry")
#: register name: owner token (8 bytes), nonce (8 bytes), value.
REGISTER = Table(23, "register", guarded=True)
#: owner 0; ``=`` and the namespace's name, which may be empty: its number.
NAMESPACE = Table(24, "namespace")
#: stream name: stream number.
STREAM = Table(25, "stream")
#: owner stream; time, type or agent of an event, then its seq (8 bytes).
EVENT_INDEX = Table(26, "event_index")
#: owner 0; value id (16 bytes): key ids and ciphertext of a personal value.
SEALED = Table(27, "sealed", ordered=False, separate=True)
#: owner 0; key id (16 bytes), value id (16 bytes).
SEALED_BY = Table(28, "sealed_by")
#: owner 0; key id: how far the erasure of this key has come.
ERASED = Table(29, "erased", guarded=True)
#: owner 0: ``ids`` (the last number given out), ``unfinished/`` key id.
COUNTER = Table(30, "counter")
#: kind, NUL, order (8 bytes), thread name …: whatever is looked up across threads.
ENTRY = Table(31, "entry")
#: owner branch; ``log/`` log name: log number; ``entry/``: a reference to each ENTRY of its thread;
#: ``metadata``: the indexed metadata that HEAD has no room for.
DETAIL = Table(32, "detail")

TABLES: tuple[Table, ...] = (
    ROW, PAST, KEYFRAME, ITEM, FINGERPRINT, EVENT, BRANCH,
    HEAD, UID, MARK, CHILD, COMMIT_KEY, METADATA, EXPIRY, REGISTER, NAMESPACE, STREAM, EVENT_INDEX,
    SEALED, SEALED_BY, ERASED, COUNTER, ENTRY, DETAIL,
)  # fmt: skip
