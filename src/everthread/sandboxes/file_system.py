"""Files as an fsspec file system: for pandas, Arrow and whatever else reads and writes through fsspec.

Loaded by ``files.file_system()`` alone: fsspec is an optional package.
"""

from __future__ import annotations

import io
from typing import Any

import fsspec

from everthread.errors import NotFoundError, UsageError
from everthread.sandboxes.files import Files, FilesView
from everthread.sandboxes.tree import FileInfo


class EverthreadFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A tree of files, now or at a version. What is written waits for ``files.save()``, as always."""

    protocol = "everthread"
    cachable = False

    def __init__(self, files: FilesView, **options: Any) -> None:
        super().__init__(use_listings_cache=False, **options)
        self._files = files

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("everthread://").strip("/")

    def _writable(self) -> Files:
        if not isinstance(self._files, Files):
            raise UsageError("this is the past: files.at(version) is read only")
        return self._files

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """What is in a folder, or the file itself."""
        place = self._strip_protocol(path)
        try:
            found = [self._files.info(place)] if place else []
            if not place or found[0].kind == "folder":
                found = self._files.list(place, recursive=False)
        except NotFoundError:
            raise FileNotFoundError(path) from None
        return [_entry(each) if detail else each.path for each in found]

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """What is at a path."""
        place = self._strip_protocol(path)
        if not place:
            return {"name": "", "size": 0, "type": "directory"}
        try:
            return _entry(self._files.info(place))
        except NotFoundError:
            raise FileNotFoundError(path) from None

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """The content of a file, or a part of it."""
        try:
            return self._files.read(self._strip_protocol(path))[start:end]
        except NotFoundError:
            raise FileNotFoundError(path) from None

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Put a file in its place."""
        place = self._strip_protocol(path)
        if mode == "create" and self._files.exists(place):
            raise FileExistsError(path)
        self._writable().write(place, value)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        place = self._strip_protocol(path)
        if mode == "rb":
            return io.BytesIO(self.cat_file(place))
        if mode not in ("wb", "xb", "ab"):
            raise UsageError(f"a file is opened for reading or writing as a whole, not with mode {mode!r}")
        if mode == "xb" and self._files.exists(place):
            raise FileExistsError(path)
        before = self.cat_file(place) if mode == "ab" and self._files.exists(place) else b""
        return _Written(self._writable(), place, before)

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        self._remove(path, recursive=False)

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, and with ``recursive`` folders."""
        for each in [path] if isinstance(path, str) else path:
            self._remove(each, recursive=recursive)

    def _remove(self, path: str, *, recursive: bool) -> None:
        try:
            self._writable().remove(self._strip_protocol(path), recursive=recursive)
        except NotFoundError:
            raise FileNotFoundError(path) from None

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """An empty folder."""
        place = self._strip_protocol(path)
        if self._files.exists(place):
            raise FileExistsError(path)
        self._writable().make_folder(place)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """The same; it may be there."""
        if not (exist_ok and self.isdir(path)):
            self.mkdir(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        self._remove(path, recursive=False)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        """Copy a file: its content is stored once."""
        self.pipe_file(path2, self.cat_file(path1))

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """Move a file or a folder."""
        try:
            self._writable().move(self._strip_protocol(path1), self._strip_protocol(path2))
        except NotFoundError:
            raise FileNotFoundError(path1) from None


class _Written(io.BytesIO):
    """A file that is put in its place when it is closed."""

    def __init__(self, files: Files, place: str, before: bytes) -> None:
        super().__init__()
        self._files = files
        self._place = place
        self.write(before)

    def close(self) -> None:
        if not self.closed:
            self._files.write(self._place, self.getvalue())
        super().close()

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is not None:
            # What was cut short isn't put anywhere.
            super().close()
            return
        self.close()


def _entry(info: FileInfo) -> dict[str, Any]:
    kinds = {"file": "file", "folder": "directory", "link": "link"}
    return {"name": info.path, "size": info.size, "type": kinds[info.kind], "mode": info.mode}
