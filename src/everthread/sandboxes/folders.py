"""The folders of machines that hold files of a store: an erasure can't reach them, and has to name them."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from everthread.arguments import counted
from everthread.codec import records
from everthread.errors import EverthreadError
from everthread.stores.contract import StaleCell
from everthread.threads.sync.journals import space_beside

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core

FOLDERS = "folders"
_PAGE = 200
#: More than these are counted, not named.
_NAMED_MAX = 100


class KnownFolder(msgspec.Struct, frozen=True):
    """Where files of a thread were written out, or are recorded from."""

    host: str
    path: str
    since_us: int


def note_folder(core: Core, path: str) -> None:
    """Note that a folder of this machine holds files of the store. What can't be noted is done without: the
    next one who uses it notes it."""
    known = KnownFolder(socket.gethostname(), os.path.realpath(path), core.runtime.now_us())
    space, name = space_beside(core.space, FOLDERS), _name(known.path)
    with suppress(EverthreadError, StaleCell):
        if core.backend.cell(space, name, known.since_us) is None:
            value = records.compress(msgspec.msgpack.encode(known))
            core.backend.swap(space, name, 0, value, known.since_us)


def forget_folder(core: Core, path: str) -> None:
    """The folder is gone."""
    space, name = space_beside(core.space, FOLDERS), _name(os.path.realpath(path))
    now_us = core.runtime.now_us()
    with suppress(EverthreadError, StaleCell):
        cell = core.backend.cell(space, name, now_us)
        if cell is not None:
            core.backend.swap(space, name, cell.revision, None, now_us)


def known_folders(core: Core, space: str | None = None) -> list[KnownFolder]:
    """The folders of a namespace that were noted and not forgotten, by path."""
    found: list[KnownFolder] = []
    place, after = space_beside(core.space if space is None else space, FOLDERS), None
    while page := core.backend.cells(place, "", after, _PAGE, core.runtime.now_us()):
        for _, cell in page:
            with suppress(EverthreadError, msgspec.MsgspecError):
                data = records.expand(cell.value, "a folder")
                found.append(msgspec.msgpack.decode(data, type=KnownFolder))
        after = page[-1][0]
    return sorted(found, key=lambda folder: (folder.host, folder.path))


def unreached_folders(core: Core) -> tuple[str, ...]:
    """What the certificate of an erasure says of them. An erasure goes through all namespaces; folders of
    other tenants are counted, and not named."""
    found = known_folders(core)
    named = [
        f"the folder {each.path} on {each.host}, where files were written" for each in found[:_NAMED_MAX]
    ]
    spaces = {line.space.partition("\0")[0] for line in core.backend.every_line()} - {core.space}
    others = len(found) - len(named) + sum(len(known_folders(core, space)) for space in spaces)
    return (*named, f"{counted(others, 'other folder')} where files were written") if others else tuple(named)


def _name(path: str) -> str:
    return sha256(f"{socket.gethostname()}\0{path}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
