"""Whether a file still has the content that it had."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from typing import Any

from everthread.arguments import check_path, counted
from everthread.errors import InvalidValueError
from everthread.values import Personal
from everthread.verifiers.permissions import Permissions
from everthread.verifiers.specs import Spec, fields, make_spec
from everthread.verifiers.verdicts import Verdict, contradicted, fresh, unverifiable

_CHUNK_BYTES = 1 << 20


def file_hash(path: str | os.PathLike[str] | None = None) -> Spec:
    """Holds while the file has the size and SHA-256 that it has now.

    Without a path the value of the fact is the path. A relative path is looked up from the folder in which
    the fact was recorded.
    """
    return make_spec("file_hash", {"path": None if path is None else check_path(path)})


class FileHash:
    """The verifier behind :func:`file_hash`."""

    def capture(self, value: Any, args: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        path = os.path.abspath(path_of(value, args))
        with _Regular(path, timeout_s) as file:
            size, digest = file.digest()
        return {"path": path, "size": size, "sha256": digest}

    def check(
        self, value: Any, args: dict[str, Any], expected: Any, allowed: Permissions, timeout_s: float
    ) -> Verdict:
        path, size, digest = fields(expected, "path", "size", "sha256")
        if not isinstance(path, str) or not isinstance(size, int) or not isinstance(digest, str):
            return unverifiable("what was recorded of the file is not understood")
        try:
            with _Regular(path, timeout_s) as file:
                if file.size != size:
                    return contradicted(f"{counted(file.size, 'byte')}, were {size:,}: {path}")
                if file.digest() != (size, digest):
                    return contradicted(f"content changed: {path}")
        except FileNotFoundError:
            return contradicted(f"gone: {path}")
        return fresh(f"unchanged, sha256 {digest[:12]}: {path}")


def path_of(value: Any, args: dict[str, Any]) -> str:
    """The path in the arguments, else in the value itself."""
    path = args.get("path")
    if path is None:
        if isinstance(value, Personal):
            # Recorded beside the fact, in clear.
            raise InvalidValueError("the value is personal and isn't used as a path; name the path")
        path = value
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidValueError("neither an argument nor the value of the fact is a path")
    return path


class _Regular:
    """A regular file, open for reading. A pipe or a device could block, or never end."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self._until = time.monotonic() + timeout_s
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(self._fd)
            if not stat.S_ISREG(found.st_mode):
                raise InvalidValueError(f"{path} is not a regular file")
        except BaseException:
            os.close(self._fd)
            raise
        self.size = found.st_size

    def digest(self) -> tuple[int, str]:
        """Size and SHA-256 of what is read; a file that grows meanwhile has the size that was read."""
        digest, size = hashlib.sha256(), 0
        while block := os.read(self._fd, _CHUNK_BYTES):
            digest.update(block)
            size += len(block)
            if time.monotonic() > self._until:
                raise TimeoutError(f"hashing {self.size:,} bytes took too long")
        return size, digest.hexdigest()

    def __enter__(self) -> _Regular:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
