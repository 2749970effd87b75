"""Keyrings: where the keys of subjects live, outside every store, its backups and its exports."""

from __future__ import annotations

import os
import re
import threading
import urllib.parse
from pathlib import Path
from typing import Protocol

from everthread.codec.seal import ID_BYTES, KEY_BYTES, RandomBytes, SubjectKey
from everthread.errors import KeyringError, StoreClosedError, UnsupportedError
from everthread.model.names import check_name
from everthread.stores.keyring_file import FileKeyring
from everthread.stores.keyring_master import MASTER_KEY_VARIABLE, MasterKey

__all__ = [
    "MASTER_KEY_VARIABLE",
    "FileKeyring",
    "Keyring",
    "MasterKey",
    "MemoryKeyring",
    "open_keyring",
]

_AVAILABLE = "available are a directory (a path or file:///absolute/path) and memory:"


class Keyring(Protocol):
    """Holds one live key per subject. Safe to share between threads.

    Every method may raise :class:`KeyringError` when the keys can't be read or written, and
    :class:`StoreClosedError` after ``close``.
    """

    @property
    def epoch(self) -> int:
        """A number that changes whenever any process destroys or re-wraps keys; cheap to ask for."""

    @property
    def rotates_master(self) -> bool:
        """Whether ``destroy`` also makes older copies of the keyring useless."""

    def key_for(self, subject: str) -> SubjectKey:
        """The live key of ``subject``, created on first use and durable when this returns."""

    def key_ids(self, subject: str) -> list[bytes]:
        """The ids of the live keys of ``subject``; empty if there is none. Creates nothing."""

    def key(self, key_id: bytes) -> SubjectKey | None:
        """The key with this id, or ``None`` if it is unknown here or destroyed."""

    def is_destroyed(self, key_id: bytes) -> bool:
        """Whether a key with this id was here and has been destroyed."""

    def destroy(self, subject: str) -> list[bytes]:
        """Destroy every key of ``subject`` for good and return their ids; empty if there was none."""

    def close(self) -> None:
        """Forget every key held in memory. May be called twice."""


class MemoryKeyring:
    """A keyring that is gone with its process."""

    rotates_master = True

    def __init__(self, random_bytes: RandomBytes = os.urandom) -> None:
        self._random_bytes = random_bytes
        self._mutex = threading.Lock()
        self._by_subject: dict[str, SubjectKey] = {}
        self._by_id: dict[bytes, SubjectKey] = {}
        self._destroyed: set[bytes] = set()
        self._epoch = 1
        self._closed = False

    @property
    def epoch(self) -> int:
        self._check_open()
        return self._epoch

    def key_for(self, subject: str) -> SubjectKey:
        self._check_open()
        check_name(subject, "subject")
        with self._mutex:
            key = self._by_subject.get(subject)
            if key is None:
                key = SubjectKey(self._random_bytes(ID_BYTES), self._random_bytes(KEY_BYTES))
                if key.key_id in self._by_id or key.key_id in self._destroyed:
                    raise KeyringError("the source of randomness repeats itself; no key was made")
                self._by_subject[subject] = self._by_id[key.key_id] = key
            return key

    def key_ids(self, subject: str) -> list[bytes]:
        self._check_open()
        key = self._by_subject.get(check_name(subject, "subject"))
        return [] if key is None else [key.key_id]

    def key(self, key_id: bytes) -> SubjectKey | None:
        self._check_open()
        return self._by_id.get(key_id)

    def is_destroyed(self, key_id: bytes) -> bool:
        self._check_open()
        return key_id in self._destroyed

    def destroy(self, subject: str) -> list[bytes]:
        self._check_open()
        check_name(subject, "subject")
        with self._mutex:
            key = self._by_subject.pop(subject, None)
            if key is None:
                return []
            del self._by_id[key.key_id]
            self._destroyed.add(key.key_id)
            self._epoch += 1
            return [key.key_id]

    def close(self) -> None:
        self._closed = True
        self._by_subject.clear()
        self._by_id.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the keyring was closed; open it again")


def open_keyring(spec: str | os.PathLike[str] | Keyring | None = None) -> Keyring:
    """The keyring that ``spec`` names: a directory, as a path or ``file://`` URL, or ``memory:``.

    ``None`` is ``~/.everthread/keyring``, with ``HOME`` as it is now. A keyring object is handed back as it
    is. Nothing is read or created yet. Raises :class:`UnsupportedError` for any other scheme.
    """
    if spec is None:
        spec = "~/.everthread/keyring"
    if isinstance(spec, str):
        if spec == "memory:":
            return MemoryKeyring()
        spec = _path_of(spec)
    if not isinstance(spec, os.PathLike):
        return spec
    try:
        return FileKeyring(Path(spec).expanduser())
    except RuntimeError as error:
        raise KeyringError(
            f"the home directory is unknown, so name the keyring's directory: {error}"
        ) from error


def _path_of(spec: str) -> Path:
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", spec):
        path = spec
    else:
        url = urllib.parse.urlsplit(spec)
        if url.scheme != "file":
            raise UnsupportedError(f"no keyring opens {url.scheme}:// URLs; {_AVAILABLE}")
        if url.netloc not in ("", "localhost") or url.query or url.fragment:
            raise UnsupportedError(f"a keyring URL holds an absolute path and nothing else; {_AVAILABLE}")
        path = urllib.parse.unquote(url.path)
    if not path or "\0" in path:
        raise UnsupportedError(f"this names no directory for a keyring; {_AVAILABLE}")
    return Path(path)
