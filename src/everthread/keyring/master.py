"""Where the master key of a keyring comes from: a file beside it, the environment, or a key service."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

from everthread.codec.seal import KEY_BYTES
from everthread.errors import KeyringError
from everthread.keyring.file import check_file, overwrite, sync_directory, write_file
from everthread.keyring.format import Header, MasterSource

MASTER_KEY_VARIABLE = "EVERTHREAD_MASTER_KEY"
#: While keys are moved from one master key to another, the one before.
PREVIOUS_KEY_VARIABLE = "EVERTHREAD_MASTER_KEY_PREVIOUS"

_HOW_TO_OPEN = {
    "file": f"its master key is a file: open it without master= and without {MASTER_KEY_VARIABLE}",
    "env": f"set {MASTER_KEY_VARIABLE} to the master key it was made with",
    "hook": "open it with the master= object it was made with",
}


class MasterKey(Protocol):
    """A key management service, asked to encrypt the keyring's master key (32 random bytes).

    Whatever these methods raise reaches the caller as :class:`KeyringError`.
    """

    def wrap(self, key: bytes) -> bytes:
        """Encrypt a master key."""

    def unwrap(self, wrapped: bytes) -> bytes:
        """Decrypt what ``wrap`` returned, also in another process and years later."""


class MasterKeeper:
    """Finds the master key of a keyring, and puts a fresh one in its place.

    ``path`` is the file of the master key; ``None`` where it can't be a file. A fresh key waits in ``….next``
    until the records have been wrapped under it, so that at any moment one of the two files opens them.
    """

    def __init__(self, path: Path | None, hook: MasterKey | None, where: str | None = None) -> None:
        self._file = path
        self._where = where or str(path.parent if path is not None else "")
        self._hook = hook

    @property
    def path(self) -> Path:
        if self._file is None:
            raise KeyringError(
                f"the keyring {self._where} needs a master key that every host can get at: set "
                f"{MASTER_KEY_VARIABLE} to 32 random bytes in base64, or open it with master=, a key service"
            )
        return self._file

    @property
    def _next_path(self) -> Path:
        return self.path.with_name(self.path.name + ".next")

    @property
    def source(self) -> MasterSource:
        if self._hook is not None:
            return "hook"
        return "env" if os.environ.get(MASTER_KEY_VARIABLE) else "file"

    def in_place(self) -> bool:
        """Whether there is a file with the master key: it is put there only once records exist."""
        return self.source == "file" and self._file is not None and self._file.exists()

    def candidates(self, header: Header) -> Iterator[tuple[bytes, bool]]:
        """Master keys that may fit, and for each whether it still waits to be put in place."""
        if self.source != header.master:
            raise KeyringError(f"the keyring {self._where} can't be opened: {_HOW_TO_OPEN[header.master]}")
        if header.master == "hook":
            yield self._ask("unwrap", bytes.fromhex(header.wrapped_master)), False
        elif header.master == "env":
            yield _from_environment(MASTER_KEY_VARIABLE), False
            if os.environ.get(PREVIOUS_KEY_VARIABLE):
                yield _from_environment(PREVIOUS_KEY_VARIABLE), False
        else:
            yield from self._files()

    def prepare(self, source: MasterSource, current: bytes, fresh: bytes) -> tuple[bytes, str]:
        """The master key for the records that are written next, and what their header keeps of it."""
        if source == "env":
            return current or _from_environment(MASTER_KEY_VARIABLE), ""
        if source == "hook":
            return fresh, self._ask("wrap", fresh).hex()
        write_file(self._next_path, fresh)
        sync_directory(self._next_path.parent)
        return fresh, ""

    def put_in_place(self, master: bytes) -> None:
        """If ``master``, under which the records are wrapped, still waits, let it replace the old key.

        The old key is overwritten, so this looks at the file itself: another process may have been here.
        """
        with suppress(FileNotFoundError):
            if self._next_path.read_bytes() != master:
                return
            with suppress(OSError):
                old = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
                try:
                    overwrite(old)
                finally:
                    os.close(old)
            os.rename(self._next_path, self.path)
            sync_directory(self.path.parent)

    def _files(self) -> Iterator[tuple[bytes, bool]]:
        found = False
        for path in (self.path, self._next_path):
            with suppress(FileNotFoundError):
                check_file(path)
                key = path.read_bytes()
                found = True
                if len(key) == KEY_BYTES:
                    yield key, path == self._next_path
        if not found:
            raise KeyringError(
                f"{self.path} is missing, and the keys beside it need it; put it back from its copy, or "
                "move this "
                "keyring aside and bring the keys into a new one: everthread keyring restore FILE. No new "
                "master key was made"
            )

    def _ask(self, verb: Literal["wrap", "unwrap"], data: bytes) -> bytes:
        hook = self._hook
        assert hook is not None
        try:
            answer = hook.wrap(data) if verb == "wrap" else hook.unwrap(data)
        except Exception as error:
            raise KeyringError(
                f"the master key service failed to {verb} the master key ({error}); see that it can be "
                "reached, "
                "and that it lets this program in, and try again"
            ) from error
        if type(answer) is not bytes or not answer or (verb == "unwrap" and len(answer) != KEY_BYTES):
            raise KeyringError(
                f"the master key service answered {verb} with something that is no key; mend the object that "
                "was given as master=, whose wrap() gives bytes, and whose unwrap() the 32 bytes that were "
                "wrapped"
            )
        return answer


def _from_environment(variable: str) -> bytes:
    text = os.environ.get(variable, "").strip()
    with suppress(ValueError):
        if len(text) == 2 * KEY_BYTES:
            return bytes.fromhex(text)
        digits = text.rstrip("=").replace("-", "+").replace("_", "/")
        key = b64decode(digits + "=" * (-len(digits) % 4), validate=True)
        if len(key) == KEY_BYTES:
            return key
    # Its value stays out of the message: what is nearly a key is a secret too.
    raise KeyringError(
        f"{variable} must hold {KEY_BYTES} bytes, in base64 or as hexadecimal digits; set it to the key "
        "that the "
        "keyring was made with, or to a new one if there is none yet"
    )


class InTheClear:
    """A key service for what nobody else can read."""

    def wrap(self, key: bytes) -> bytes:
        return key

    def unwrap(self, wrapped: bytes) -> bytes:
        return wrapped
