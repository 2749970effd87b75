"""Pickles with our signature, the only ones that are ever loaded.

A pickle is a program: loading one that somebody else wrote runs whatever they like. So each carries a
signature (HMAC-SHA256) under a key that is kept in the user's home, apart from the data, and nothing of a
pickle is looked at before its signature has been found good.
"""

from __future__ import annotations

import hmac
import os
import shlex
import stat
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from everthread.errors import (
    AccessError,
    InvalidStateError,
    InvalidValueError,
    KeyringError,
    StateCorruptedError,
)
from everthread.keyring.file import check_directory, make_directory, sync_directory, sync_parents, write_file

KEY_BYTES: Final = 32
_MAGIC: Final = b"everthread pickle 1\n"
_KEY_ID_BYTES: Final = 8
_MAC_BYTES: Final = 32
_BEGIN: Final = len(_MAGIC) + _KEY_ID_BYTES + _MAC_BYTES


def key_path() -> Path:
    """Where the signing key is, with ``HOME`` as it is now."""
    return Path(os.path.expanduser("~")) / ".everthread" / "signing" / "pickle.key"


class PickleSigner:
    """Makes signed pickles, and loads those that it signed. The key is made with the first signature."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._key = b""

    def dump(self, value: Any) -> bytes:
        """``value`` as a signed pickle. Raises :class:`InvalidValueError` for what can't be pickled."""
        import pickle

        try:
            pickled = pickle.dumps(value, protocol=5)
        except Exception as error:
            raise InvalidValueError(f"the state can't be pickled: {error}") from error
        if not self._key:
            self._key = _read_key(self.path) or _make_key(self.path)
        head = _MAGIC + _key_id(self._key)
        return head + _signature(self._key, head, pickled) + pickled

    def load(self, payload: Any) -> Any:
        """What was pickled. Nothing is unpickled unless the signature is good.

        Raises :class:`AccessError` if it was signed under another key, :class:`StateCorruptedError` if it
        carries no signature or was altered, and :class:`InvalidStateError` if a good one can't be rebuilt
        here.
        """
        if type(payload) is not bytes or len(payload) < _BEGIN or not payload.startswith(_MAGIC):
            raise StateCorruptedError("a pickle without our signature is never loaded")
        if not self._key:
            self._key = _read_key(self.path)
        head = payload[: len(_MAGIC) + _KEY_ID_BYTES]
        if not self._key or not hmac.compare_digest(head[len(_MAGIC) :], _key_id(self._key)):
            raise AccessError(
                f"this pickle was signed under another key than {self.path}; load it where it was saved, "
                "or bring that key here if you trust all that was signed under it"
            )
        pickled = payload[_BEGIN:]
        if not hmac.compare_digest(payload[len(head) : _BEGIN], _signature(self._key, head, pickled)):
            raise StateCorruptedError("a pickle was altered after it had been signed, and is not loaded")
        import pickle

        try:
            return pickle.loads(pickled)  # noqa: S301 - signed by us, as was just checked
        except Exception as error:
            raise InvalidStateError(
                f"a pickled state can't be rebuilt here ({error!r}); its classes must be importable as they "
                "were when it was saved"
            ) from error


def _signature(key: bytes, head: bytes, pickled: bytes) -> bytes:
    return hmac.digest(key, head + pickled, "sha256")


def _key_id(key: bytes) -> bytes:
    """Tells one key from another, and nothing of the key itself."""
    return sha256(b"everthread pickle key\n" + key).digest()[:_KEY_ID_BYTES]


def _read_key(path: Path) -> bytes:
    """The key, or nothing if there is none. Raises :class:`KeyringError` if others could get at it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise KeyringError(
            f"the signing key {path} can't be read: {error.strerror}; let this user read it, or put it "
            "back from its "
            "backup"
        ) from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.geteuid():
            raise KeyringError(
                f"the signing key {path} must be a file that only you can read; close it with: "
                f"chmod 600 {shlex.quote(str(path))}"
            )
        key = os.read(fd, KEY_BYTES + 1)
    finally:
        os.close(fd)
    _check_directories(path)
    if len(key) != KEY_BYTES:
        raise KeyringError(f"the signing key {path} is damaged; put it back from its backup")
    return key


def _make_key(path: Path) -> bytes:
    """A new key, durable when this returns. Of several processes that make one, all get the first."""
    try:
        make_directory(path.parent)
        _check_directories(path)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        write_file(temporary, os.urandom(KEY_BYTES))
        try:
            with suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            os.unlink(temporary)
        sync_directory(path.parent)
        sync_parents(path)
    except OSError as error:
        raise KeyringError(
            f"the signing key {path} can't be made: {error.strerror}; let this user write to that folder, "
            "or set HOME "
            "to one where it may be"
        ) from error
    return _read_key(path)


def _check_directories(path: Path) -> None:
    """Refuse a key in a folder that others can write to: they could put another key in its place."""
    check_directory(path.parent)
    check_directory(path.parent.parent)
