"""One readable JSON file per state, beside the store that holds the truth.

A view is written after every save, whole: its cost grows with the state. It is never read back. One that was
edited by hand is moved aside before a new one is written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

from everthread.errors import StorageWriteError
from everthread.versions import Version
from everthread.working.layout import VIEW_MARK
from everthread.working.places import Home

_log = logging.getLogger(__name__)
#: Python refuses to write larger ones in decimal.
_INT_BITS_MAX: Final = 14_000


class View:
    """The view of one state; written when it is due. Most places have no folder for views, and so none."""

    def __init__(self, home: Home | None) -> None:
        self._home = home
        self.due = False

    @property
    def _folder(self) -> str | None:
        return None if self._home is None else self._home.views

    def write(self, id: str, snapshot: Callable[[], dict[Any, Any]], version: Version | None) -> None:
        """Write it if it is due; it stays due if that fails. Raises :class:`StorageWriteError`."""
        if self.due and self._folder is not None and version is not None:
            write_view(self._folder, id, snapshot(), version)
        self.due = False

    def mend(self, id: str, snapshot: Callable[[], dict[Any, Any]], version: Version | None) -> None:
        """Write it if it is of another version: whoever saved last may have died before writing it."""
        if self._folder is not None and version is not None and not is_current(self._folder, id, version):
            self.due = True
            with contextlib.suppress(StorageWriteError):
                self.write(id, snapshot, version)


def view_path(folder: str, id: str) -> str:
    return os.path.join(folder, f"{id}.json")


def write_view(folder: str, id: str, snapshot: dict[Any, Any], version: Version) -> None:
    """Write the view of a state at ``version``, unless there is one of a later version.

    Atomic: whoever reads sees the old file or the new one. Raises :class:`StorageWriteError`.
    """
    body = readable(snapshot)
    body.pop(VIEW_MARK, None)
    mark = {"note": "A view. Changes made here are not read.", "version": version.id, "seq": version.seq}
    text = _text({VIEW_MARK: {**mark, "digest": _digest(body)}, **body})
    path = view_path(folder, id)
    try:
        with _locked(folder):
            if _replaceable(path, version):
                _replace(folder, path, text)
    except OSError as error:
        raise StorageWriteError(
            f"the state is saved, but its view {path} can't be written ({error.strerror}); "
            "save() again writes it"
        ) from error


def is_current(folder: str, id: str, version: Version) -> bool:
    """Whether the view is of this version."""
    mark = _read(view_path(folder, id))[0]
    return mark is not None and mark.get("version") == version.id


def _replaceable(path: str, version: Version) -> bool:
    if not os.path.exists(path):
        return True
    mark, body = _read(path)
    if mark is None or mark.get("digest") != _digest(body):
        aside = _free(f"{path}.edited")
        os.rename(path, aside)
        _log.warning("%s was edited by hand; the edited file is now %s", path, aside)
        return True
    seq = mark.get("seq")
    return not isinstance(seq, int) or seq <= version.seq


def _free(path: str) -> str:
    number = 1
    while os.path.exists(f"{path}-{number}"):
        number += 1
    return f"{path}-{number}"


def _read(path: str) -> tuple[dict[str, Any] | None, Any]:
    """The mark of a view and the rest of it; no mark if it isn't one."""
    try:
        with open(path, encoding="utf-8", errors="surrogatepass") as file:
            content = json.load(file)
        mark = content.pop(VIEW_MARK)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None, None
    return (mark if isinstance(mark, dict) else None), content


def _replace(folder: str, path: str, text: str) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    # The folder itself: no file that would only be a lock.
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        # Closing alone would not free it while a child, forked meanwhile, still has the descriptor.
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _text(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _digest(body: Any) -> str:
    # Over the meaning, not the text: a change of white space or of the order of keys is no edit.
    encoded = json.dumps(body, sort_keys=True, allow_nan=False).encode("utf-8", "surrogatepass")
    return sha256(encoded).hexdigest()


def readable(value: Any) -> Any:
    """JSON-like data for people: what JSON doesn't know becomes text, personal values a mask."""
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if value.bit_length() <= _INT_BITS_MAX else f"an integer of {value.bit_length():,} bits"
    if type(value) is float:
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((readable(item) for item in value), key=str)
    return str(value)
