"""The Lua scripts, by name, with what a server knows them by.

Their text lies in ``lua/*.lua`` and is constant: whatever a caller names comes in as an argument.
"""

from __future__ import annotations

from hashlib import sha1
from typing import NamedTuple

from everthread.stores.resources import read_sections

_FILES = ("lines", "writes", "cells", "events", "sealed")
_SECTIONS = {
    name: text
    for file in _FILES
    for name, text in read_sections("everthread.stores.valkey", f"lua/{file}.lua").items()
}


class Script(NamedTuple):
    """``sha`` is how EVALSHA names it; ``writes``: whether it changes anything."""

    name: str
    text: bytes
    sha: bytes
    writes: bool


def _script(name: str, *before: str, writes: bool = False) -> Script:
    """The section of this name, with those in front that it needs."""
    text = "\n".join(_SECTIONS[each] for each in (*before, name)).encode()
    # What the server calls a script; nothing is kept secret or safe by it.
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode(), writes)


_READING = ("lives", "common")
_WRITING = (*_READING, "for lifetimes", "for writes", "for sealed")
_CELLS = ("for cells",)
_STREAMS = ("for streams",)
_SEALED = ("arguments", "for sealed")

FIND = _script("find", *_READING)
FOUND = _script("found", *_READING)
LINE = _script("line", *_READING)
BY_UID = _script("by uid", *_READING)
MEMBERS = _script("members", *_READING)
REPLAY = _script("replay", *_READING)
SCAN = _script("scan", *_READING)
TAIL = _script("tail", *_READING)
CHUNKS = _script("chunks", *_READING)
NEWER = _script("newer", *_READING)
USAGE = _script("usage", *_READING)

APPEND = _script("append for ever", "lives", "append", "for lifetimes", writes=True)
APPEND_FULL = _script("append full", *_WRITING, writes=True)
CREATE = _script("create", *_WRITING, writes=True)
CLAIM = _script("claim", *_WRITING, writes=True)
SETTLE = _script("settle", *_WRITING, writes=True)
FREE = _script("free", *_WRITING, writes=True)
FOLD = _script("fold", *_WRITING, writes=True)
TAG = _script("tag", *_WRITING, writes=True)
DELETE = _script("delete", *_WRITING, writes=True)
PRUNE = _script("prune", *_WRITING, writes=True)
KEYFRAME = _script("keyframe", *_READING, writes=True)
SHED = _script("shed", *_WRITING, writes=True)
FORGET = _script("forget", *_WRITING, writes=True)
LIST = _script("list", writes=True)
UNLIST = _script("unlist", writes=True)
UNINDEX = _script("unindex", writes=True)

CELL = _script("cell", *_CELLS)
SWAP = _script("swap", *_CELLS, writes=True)
CELLS = _script("cells", *_CELLS)
CELLS_USAGE = _script("cells usage")

EMIT = _script("emit", *_STREAMS, *_SEALED, writes=True)
EVENTS = _script("events", *_STREAMS)
STREAM = _script("stream", *_STREAMS)
REWRITE = _script("rewrite", *_STREAMS, writes=True)
TRIM = _script("trim", *_STREAMS, writes=True)

TAKE_SEALED = _script("take sealed", *_SEALED, writes=True)
DROP_SEALED = _script("drop sealed", *_SEALED, writes=True)
SEALED_UNDER = _script("sealed under", *_SEALED)
SEALED_USAGE = _script("sealed usage")
REFUSE = _script("refuse", *_SEALED, writes=True)
NOTE = _script("note", *_SEALED, writes=True)

ALL: tuple[Script, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Script))
