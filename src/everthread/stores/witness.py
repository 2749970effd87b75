"""A file beside a store that knows how long its ledgers of effects have been.

The newest records of a ledger can vanish without a trace: a journal that is cut off at the end of a line is
an older one, whole, and so is what SQLite makes of a write-ahead log whose end is damaged. So whoever has
written to a ledger notes its newest version here, in another file, which the damage doesn't reach.

A note is a write without a sync: after a power cut it may be behind what was written, it is never ahead. It
may be missing, too: there are only so many places, and who comes later takes the one of somebody else.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from zlib import crc32

import msgspec

from everthread.stores.urls import real_path, unquoted

_PLACES = 4096
_BYTES = 64
#: Where the parts of a note are: whose it is, the uid of that, the version, which file it was about, the sum.
_UID, _SEQ, _FILE, _SUM, _END = 16, 32, 40, 48, 52


class Noted(msgspec.Struct, frozen=True):
    """What is known of a thread's ledger: a hash of the thread's name, its uid, and the newest version of the
    ledger."""

    whose: bytes
    uid: bytes
    seq: int


class Witness:
    """The notes about one store; without one it knows nothing and takes none."""

    def __init__(self, about: str, ending: str) -> None:
        #: What must still be the same file, or folder: another one in its place has other ledgers.
        self._about = about
        self._ending = ending

    @cached_property
    def _path(self) -> str:
        # Not before it is needed, which it isn't by most who open a store; the same by every symbolic link.
        return real_path(self._about) + self._ending if self._about else ""

    def known(self, space: str, name: str) -> Noted | None:
        """What was noted last about the ledger of a thread.

        To be asked before the ledger is read: it may grow meanwhile.
        """
        digest = _digest(space, name)
        noted = self._read(_place(digest), _BYTES)
        return noted[0] if noted and noted[0].whose == digest else None

    def every(self) -> list[Noted]:
        """All that was noted."""
        return self._read(0, _PLACES * _BYTES)

    def _read(self, start: int, size: int) -> list[Noted]:
        if not self._path:
            return []
        try:
            with open(self._path, "rb") as file:
                found = os.pread(file.fileno(), size, start)
        except OSError:
            return []
        identity, noted = self._identity(), []
        for at in range(0, len(found), _BYTES):
            note = found[at : at + _END]
            if len(note) == _END and note[_SUM:] == _sum(note[:_SUM]) and note[_FILE:_SUM] == identity:
                seq = int.from_bytes(note[_SEQ:_FILE], "little")
                noted.append(Noted(note[:_UID], note[_UID:_SEQ], seq))
        return noted

    def notes(self, space: str, name: str, uid: bytes) -> Notes:
        """Where the ledger of a thread is noted."""
        digest = _digest(space, name)
        return Notes(self._path, _place(digest), digest + uid, self._identity())

    def take_over(self, noted: Noted) -> None:
        """Know what the witness of another store knew of a thread that didn't come along from there."""
        notes = Notes(self._path, _place(noted.whose), noted.whose + noted.uid, self._identity())
        notes.note(noted.seq)
        notes.close()

    def forget(self) -> None:
        """Forget everything: the content of the store was replaced, and whoever did that knows."""
        with suppress(OSError):
            os.truncate(self._path, 0)

    def _identity(self) -> bytes:
        try:
            return os.stat(self._about).st_ino.to_bytes(8, "little")
        except OSError:
            return bytes(8)


class Notes:
    """The place of one ledger. Whatever fails here fails nothing: a missing note is a witness less."""

    def __init__(self, path: str, place: int, whose: bytes, identity: bytes) -> None:
        self._path = path
        self._place = place
        self._whose = whose
        self._identity = identity
        self._file = -1

    def note(self, seq: int) -> None:
        """The ledger has come to this version, which is acknowledged."""
        if not self._path:
            return
        note = self._whose + seq.to_bytes(8, "little") + self._identity
        with suppress(OSError):
            if self._file < 0:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._file, note + _sum(note), self._place)

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def witness_of(url: str) -> Witness:
    """The witness of the store at a URL. A store on a server, or in memory, has none."""
    scheme, _, rest = url.partition("://")
    path = unquoted(rest.partition("?")[0])
    if scheme == "sqlite":
        return witness_of_file(path[1:])
    return witness_of_folder(path) if scheme == "file" else Witness("", "")


def witness_of_file(path: str) -> Witness:
    """That of a SQLite store."""
    return Witness(path, "-witness")


def witness_of_folder(path: str) -> Witness:
    """That of a file store: called like what is derived, which git leaves alone."""
    return Witness(path, "/witness.index")


def _digest(space: str, name: str) -> bytes:
    return sha256(f"{space}\0{name}".encode("utf-8", "surrogatepass")).digest()[:16]


def _place(digest: bytes) -> int:
    return int.from_bytes(digest[:4], "little") % _PLACES * _BYTES


def _sum(note: bytes) -> bytes:
    return crc32(note).to_bytes(4, "little")
