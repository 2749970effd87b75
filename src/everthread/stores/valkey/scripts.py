"""The scripts by name, with what a server knows them by."""

from __future__ import annotations

from hashlib import sha1
from typing import NamedTuple

from everthread.stores.valkey import lua_cells, lua_copies, lua_lines, lua_sealed, lua_writing


class Script(NamedTuple):
    """``sha`` is how EVALSHA names it; ``writes``: whether it changes anything."""

    name: str
    text: bytes
    sha: bytes
    writes: bool


def _script(name: str, text: str, *, writes: bool = False) -> Script:
    raw = text.strip().encode()
    # What the server calls a script; nothing is kept secret or safe by it.
    return Script(name, raw, sha1(raw, usedforsecurity=False).hexdigest().encode(), writes)


def _reading(name: str, text: str) -> Script:
    return _script(name, lua_lines.COMMON + text)


def _writing(name: str, text: str) -> Script:
    return _script(name, lua_lines.COMMON + lua_writing.WRITING + lua_sealed.TAKING + text, writes=True)


FIND = _reading("find", lua_lines.FIND)
FOUND = _reading("found", lua_lines.FOUND)
LINE = _reading("line", lua_lines.LINE)
BY_UID = _reading("by uid", lua_lines.BY_UID)
MEMBERS = _reading("members", lua_lines.MEMBERS)
REPLAY = _reading("replay", lua_lines.REPLAY)
SCAN = _reading("scan", lua_lines.SCAN)
TAIL = _reading("tail", lua_lines.TAIL)
CHUNKS = _reading("chunks", lua_lines.CHUNKS)
NEWER = _reading("newer", lua_lines.NEWER)
USAGE = _reading("usage", lua_lines.USAGE)

APPEND = _script("append", lua_writing.APPEND, writes=True)
APPEND_FULL = _writing("append with everything", lua_writing.APPEND_FULL)
CREATE = _writing("create", lua_writing.CREATE)
CLAIM = _writing("claim", lua_writing.CLAIM)
SETTLE = _writing("settle", lua_writing.SETTLE)
FREE = _writing("free", lua_writing.FREE)
FOLD = _writing("fold", lua_writing.FOLD)
TAG = _writing("tag", lua_writing.TAG)
DELETE = _writing("delete", lua_writing.DELETE)
PRUNE = _writing("prune", lua_writing.PRUNE)
KEYFRAME = _script("keyframe", lua_lines.COMMON + lua_writing.KEYFRAME, writes=True)
LIST = _script("list", lua_writing.LIST, writes=True)
UNLIST = _script("unlist", lua_writing.UNLIST, writes=True)
UNINDEX = _script("unindex", lua_writing.UNINDEX, writes=True)

CELL = _script("cell", lua_cells.CELL)
SWAP = _script("swap", lua_cells.SWAP, writes=True)
CELLS = _script("cells", lua_cells.CELLS)
EMIT = _script("emit", lua_cells.EMIT, writes=True)
EVENTS = _script("events", lua_cells.EVENTS)
STREAM = _script("stream", lua_cells.STREAM)
REWRITE = _script("rewrite", lua_cells.REWRITE, writes=True)
DROP = _script("drop", lua_cells.DROP, writes=True)
SEALED_TAKE = _script("sealed take", lua_cells.SEALED_TAKE)
CELLS_TAKE = _script("cells take", lua_cells.CELLS_TAKE)

TAKE = _script("take sealed", lua_sealed.TAKE, writes=True)
DROP_SEALED = _script("drop sealed", lua_sealed.DROP_SEALED, writes=True)
UNDER = _script("sealed under", lua_sealed.UNDER)
REFUSE = _script("refuse", lua_sealed.REFUSE, writes=True)
NOTE = _script("note erasures", lua_sealed.NOTE, writes=True)

READ_ALL = _script("read all", lua_copies.READ_ALL)
WIPE = _script("wipe", lua_copies.WIPE, writes=True)

ALL: tuple[Script, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Script))
