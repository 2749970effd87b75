"""Keyrings: where the keys of subjects live, outside every store, its backups and its exports."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from everthread import process
from everthread.arguments import KEYRINGS, check_keyring, check_name, with_extra
from everthread.codec.seal import ID_BYTES, KEY_BYTES, RandomBytes, SubjectKey
from everthread.errors import KeyringError, MissingDependencyError, StoreClosedError, UnsupportedError
from everthread.keyring.file import FileKeyring
from everthread.keyring.format import subject_token
from everthread.keyring.master import MASTER_KEY_VARIABLE, MasterKey
from everthread.keyring.medium import Clock, dawn
from everthread.keyring.parcel import KeyParcel
from everthread.stores.contract import Residues

__all__ = [
    "MASTER_KEY_VARIABLE",
    "FileKeyring",
    "Keyring",
    "MasterKey",
    "MemoryKeyring",
    "open_keyring",
]

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*://"


class Keyring(Protocol):
    """Holds the live keys of each subject. Safe to share between threads.

    Every method may raise :class:`KeyringError` when the keys can't be read or written, and
    :class:`StoreClosedError` after ``close``.
    """

    @property
    def where(self) -> str:
        """What to call it in reports."""

    @property
    def epoch(self) -> int:
        """A number that changes whenever any process destroys or re-wraps keys; cheap to ask for."""

    @property
    def rotates_master(self) -> bool:
        """Whether ``destroy`` also makes older copies of the keyring useless."""

    def key_for(self, subject: str, now_us: Clock = dawn) -> SubjectKey:
        """The key for what is sealed now, created on first use and durable when this returns; a new one if
        the time of the one before is over by ``now_us``."""

    def key_ids(self, subject: str) -> list[bytes]:
        """The ids of the live keys of ``subject``: those that came from other keyrings, then its own, the
        oldest first; creates none."""

    def key(self, key_id: bytes) -> SubjectKey | None:
        """The key with this id, or ``None`` if it is unknown here or destroyed."""

    def is_destroyed(self, key_id: bytes) -> bool:
        """Whether a key with this id was here and has been destroyed."""

    def is_closed(self, key_id: bytes, now_us: Clock) -> bool:
        """Whether it was destroyed, or its time is over by ``now_us``."""

    def times(self) -> dict[bytes, int]:
        """Until when keys may be used, in microseconds since 1970, 0 for ever; only those of which anybody
        ever said so."""

    def set_times(self, until_us: Mapping[bytes, int]) -> None:
        """Say of live keys until when they may be used, durably; 0 for ever."""

    def holds(self, key_ids: Collection[bytes]) -> frozenset[bytes]:
        """What was said to hold any of these keys: whoever destroys keys asks before."""

    def set_hold(self, key_id: bytes, by: bytes, *, on: bool) -> bool:
        """Say, durably, that a key is held, or isn't any more; ``by`` tells holds apart. Whether the key is
        alive: else nothing was done."""

    def destroyed(self) -> frozenset[bytes]:
        """The ids of all keys that were destroyed."""

    def alive(self) -> int:
        """How many keys are alive."""

    def held(self) -> frozenset[bytes]:
        """The ids of all keys that are or were here: alive, or destroyed."""

    def rotate(self, subject: str) -> bytes:
        """A new key for what is sealed from now on, with the time of the one before; older ones go on
        opening. Returns its id."""

    def rotate_master(self) -> None:
        """Wrap every key anew, under a fresh master key where that is the keyring's own."""

    def destroy(self, subject: str) -> list[bytes]:
        """Destroy every key of ``subject`` for good and return their ids; empty if there was none."""

    def destroy_keys(self, key_ids: Collection[bytes]) -> list[bytes]:
        """Destroy keys by id and return those that were alive; none of them ever comes to be again."""

    def token(self, subject: str) -> bytes:
        """What stands for a subject, where its name must not; only the keyring can tell whose it is."""

    def traces(self, key_ids: Collection[bytes]) -> list[bytes]:
        """What stands for these keys, byte for byte, where the keyring is kept."""

    def residues(self, needles: Sequence[bytes]) -> Residues:
        """Look for such byte strings there, but for what belongs to somebody who has come back."""

    def sign(self, message: bytes) -> tuple[bytes, bytes]:
        """The keyring's public key (Ed25519), and its signature of ``message``."""

    def lend(self, key_ids: Collection[bytes]) -> list[KeyParcel]:
        """Those of these keys that are alive, in clear, to be taken in by another keyring."""

    def take_in(self, parcels: Sequence[KeyParcel]) -> int:
        """Add keys of other keyrings, but for destroyed ones; how many are new."""

    def close(self) -> None:
        """Forget every key held in memory. May be called twice."""


class MemoryKeyring:
    """A keyring that is gone with its process."""

    rotates_master = True
    where = "memory:"

    def __init__(self, random_bytes: RandomBytes = os.urandom) -> None:
        self._random_bytes = random_bytes
        self._mutex = process.fork_rlock(steady=True)
        self._by_subject: dict[str, list[bytes]] = {}
        self._by_id: dict[bytes, SubjectKey] = {}
        self._destroyed: set[bytes] = set()
        self._until: dict[bytes, int] = {}
        self._holds: dict[bytes, set[bytes]] = {}
        self._signing_key = random_bytes(KEY_BYTES)
        self._token_key = random_bytes(KEY_BYTES)
        self._id = random_bytes(ID_BYTES)
        #: Keys that came from other keyrings: by that one's id its token key, and by token their ids.
        self._others: dict[bytes, tuple[bytes, dict[bytes, list[bytes]]]] = {}
        self._epoch = 1
        self._closed = False

    @property
    def epoch(self) -> int:
        self._check_open()
        return self._epoch

    def key_for(self, subject: str, now_us: Clock = dawn) -> SubjectKey:
        with self._mutex:
            key_ids = self.key_ids(subject)
            alive = key_ids and not self.is_closed(key_ids[-1], now_us)
            return self._by_id[key_ids[-1] if alive else self._make(subject)]

    def key_ids(self, subject: str) -> list[bytes]:
        self._check_open()
        own = self._by_subject.get(check_name(subject, "subject"), ())
        tokens = ((subject_token(key, subject), held) for key, held in self._others.values())
        came = (key_id for token, held in tokens for key_id in held.get(token, ()))
        return [*(key_id for key_id in came if key_id in self._by_id), *own]

    def key(self, key_id: bytes) -> SubjectKey | None:
        self._check_open()
        return self._by_id.get(key_id)

    def is_destroyed(self, key_id: bytes) -> bool:
        self._check_open()
        return key_id in self._destroyed

    def is_closed(self, key_id: bytes, now_us: Clock) -> bool:
        self._check_open()
        return key_id in self._destroyed or (bool(self._until) and 0 < self._until.get(key_id, 0) <= now_us())

    def times(self) -> dict[bytes, int]:
        self._check_open()
        return dict(self._until)

    def set_times(self, until_us: Mapping[bytes, int]) -> None:
        self._check_open()
        with self._mutex:
            self._until.update((key_id, us) for key_id, us in until_us.items() if key_id in self._by_id)

    def holds(self, key_ids: Collection[bytes]) -> frozenset[bytes]:
        self._check_open()
        with self._mutex:
            return frozenset().union(*(self._holds.get(key_id, ()) for key_id in key_ids))

    def set_hold(self, key_id: bytes, by: bytes, *, on: bool) -> bool:
        self._check_open()
        with self._mutex:
            if key_id not in self._by_id:
                return False
            found = self._holds.setdefault(key_id, set())
            (found.add if on else found.discard)(by)
            return True

    def destroyed(self) -> frozenset[bytes]:
        self._check_open()
        return frozenset(self._destroyed)

    def alive(self) -> int:
        self._check_open()
        return len(self._by_id)

    def held(self) -> frozenset[bytes]:
        self._check_open()
        with self._mutex:
            return frozenset(self._by_id) | self._destroyed

    def rotate(self, subject: str) -> bytes:
        with self._mutex:
            before = self.key_ids(subject)
            key_id = self._make(subject)
            if before and before[-1] in self._until:
                self._until[key_id] = self._until[before[-1]]
            return key_id

    def _make(self, subject: str) -> bytes:
        self._check_open()
        check_name(subject, "subject")
        with self._mutex:
            key = SubjectKey(self._random_bytes(ID_BYTES), self._random_bytes(KEY_BYTES))
            if key.key_id in self._by_id or key.key_id in self._destroyed:
                raise KeyringError("the source of randomness repeats itself; no key was made")
            self._by_id[key.key_id] = key
            self._by_subject.setdefault(subject, []).append(key.key_id)
            return key.key_id

    def rotate_master(self) -> None:
        self._check_open()
        self._epoch += 1

    def destroy(self, subject: str) -> list[bytes]:
        return self.destroy_keys(self.key_ids(subject))

    def destroy_keys(self, key_ids: Collection[bytes]) -> list[bytes]:
        self._check_open()
        with self._mutex:
            alive = [key_id for key_id in key_ids if self._by_id.pop(key_id, None) is not None]
            for key_id in key_ids:
                self._until.pop(key_id, None)
                self._holds.pop(key_id, None)
            if not self._destroyed.issuperset(key_ids):
                self._destroyed.update(key_ids)
                self._epoch += 1
            left = {name: [i for i in ids if i in self._by_id] for name, ids in self._by_subject.items()}
            self._by_subject = {name: ids for name, ids in left.items() if ids}
            return alive

    def token(self, subject: str) -> bytes:
        self._check_open()
        return subject_token(self._token_key, check_name(subject, "subject"))

    def traces(self, key_ids: Collection[bytes]) -> list[bytes]:
        self._check_open()
        return []

    def residues(self, needles: Sequence[bytes]) -> Residues:
        self._check_open()
        return Residues(unreached=("the memory of this process",))

    def sign(self, message: bytes) -> tuple[bytes, bytes]:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._check_open()
        private = Ed25519PrivateKey.from_private_bytes(self._signing_key)
        return private.public_key().public_bytes_raw(), private.sign(message)

    def lend(self, key_ids: Collection[bytes]) -> list[KeyParcel]:
        self._check_open()
        with self._mutex:
            wanted = self._by_id.keys() & set(key_ids)
            own = [(k, subject_token(self._token_key, s)) for s, ks in self._by_subject.items() for k in ks]
            groups = [(self._id, self._token_key, own)]
            for keyring_id, (token_key, held) in self._others.items():
                groups.append((keyring_id, token_key, [(k, token) for token, ks in held.items() for k in ks]))
            until = {key_id: us for key_id, us in self._until.items() if key_id in wanted}
            parcels = [
                KeyParcel(
                    keyring_id, token_key, [(k, t, self._by_id[k].key) for k, t in ks if k in wanted], until
                )
                for keyring_id, token_key, ks in groups
            ]
            return [parcel for parcel in parcels if parcel.keys]

    def take_in(self, parcels: Sequence[KeyParcel]) -> int:
        self._check_open()
        new = 0
        with self._mutex:
            for parcel in parcels:
                for key_id, token, key in parcel.keys:
                    if key_id not in self._by_id and key_id not in self._destroyed:
                        self._by_id[key_id] = SubjectKey(key_id, key)
                        _, held = self._others.setdefault(parcel.keyring_id, (parcel.token_key, {}))
                        held.setdefault(token, []).append(key_id)
                        if key_id in parcel.until:
                            self._until[key_id] = parcel.until[key_id]
                        new += 1
        return new

    def close(self) -> None:
        self._closed = True
        self._by_subject.clear()
        self._by_id.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the keyring was closed; open it again")


def open_keyring(spec: str | os.PathLike[str] | Keyring | None = None) -> Keyring:
    """The keyring that ``spec`` names: a directory, as a path or ``file://`` URL, a database of its own, as
    ``sqlite:///`` or ``postgresql://`` URL, or ``memory:``.

    ``None`` is ``~/.everthread/keyring``, with ``HOME`` as it is now. A keyring object is handed back as it
    is. Nothing is read or created yet. Raises :class:`UnsupportedError` for any other scheme,
    :class:`InvalidValueError` for what is nothing of this.
    """
    check_keyring(spec)
    if spec is None:
        spec = "~/.everthread/keyring"
    if isinstance(spec, str):
        scheme = spec.partition(":")[0] if re.match(_SCHEME, spec) or spec == "memory:" else ""
        if scheme in _DATABASES:
            return _DATABASES[scheme](spec)
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
    if not re.match(_SCHEME, spec):
        path = spec
    else:
        url = urllib.parse.urlsplit(spec)
        if url.scheme != "file":
            raise UnsupportedError(f"no keyring opens {url.scheme}:// URLs; {KEYRINGS}")
        if url.netloc not in ("", "localhost") or url.query or url.fragment:
            raise UnsupportedError(f"a keyring URL holds an absolute path and nothing else; {KEYRINGS}")
        path = urllib.parse.unquote(url.path)
    if not path or "\0" in path:
        raise UnsupportedError(f"this names no directory for a keyring; {KEYRINGS}")
    return Path(path)


def _open_sqlite(url: str) -> Keyring:
    from everthread.keyring.sqlite import SqliteKeyring

    location = urllib.parse.unquote(url.partition(":")[2])
    if not location.startswith("///") or len(location) == 3 or "?" in url or "\0" in location:
        raise UnsupportedError(f"write sqlite:///keys.db or sqlite:////absolute/keys.db; {KEYRINGS}")
    return SqliteKeyring(location[3:])


def _open_postgres(url: str) -> Keyring:
    try:
        from everthread.keyring.postgres import PostgresKeyring
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise MissingDependencyError(
            f"a keyring at postgresql:// needs psycopg: {with_extra('postgres')}"
        ) from error
    return PostgresKeyring(url)


_DATABASES: dict[str, Callable[[str], Keyring]] = {
    "memory": lambda url: MemoryKeyring(),
    "sqlite": _open_sqlite,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
}
