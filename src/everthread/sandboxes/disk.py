"""Folders of this machine, looked at and changed so that nothing outside of them is ever touched.

Every step goes from an open folder to a name in it (``openat``), and no link is followed on the way: whoever
swaps a folder for a link meanwhile gets an error, not a file elsewhere. The same holds for the folder itself
if its identity is given.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from everthread.errors import InvalidStateError, InvalidValueError, StorageWriteError
from everthread.sandboxes.paths import AnyPath, shown, text_bytes, text_name
from everthread.sandboxes.tree import MODE_BITS

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: a pipe that took the place of a file would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

#: What :func:`kind_in_words` says of things without content: nothing is lost if these are left out.
WITHOUT_CONTENT = frozenset(_KINDS.values())

#: Device and inode of a folder: tells it from whatever else is put in its place.
Identity = tuple[int, int]
#: When a file was written, changed, how long it is, which one it is, and its mode.
Signature = tuple[int, int, int, int, int]


def signature(found: os.stat_result) -> Signature:
    """What says that a file is the one that it was."""
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode


def identity(found: os.stat_result) -> Identity:
    """Return the identity of a folder."""
    return found.st_dev, found.st_ino


def read_file(name: str, parent: int | None, most: int) -> bytes:
    """Return up to ``most`` bytes of a file in an open folder; nothing if it can't be read.

    Follow no link and wait for no writer: untrusted code may have put a link or a pipe in its place.
    """
    with suppress(OSError):
        fd = os.open(name, _FILE, dir_fd=parent)
        try:
            return os.read(fd, most)
        finally:
            os.close(fd)
    return b""


def kind_in_words(mode: int) -> str:
    """What something is that is neither a file, nor a folder, nor a link."""
    return _KINDS.get(stat.S_IFMT(mode), "something that is no file")


def refused(text: str, mode: int) -> InvalidValueError:
    return InvalidValueError(
        f"{text_name(text)!r} is {kind_in_words(mode)}; a tree holds files, folders and links", path=text
    )


def unreadable(text: str, error: OSError, verb: str = "read") -> StorageWriteError:
    return StorageWriteError(f"{text_name(text)!r} can't be {verb}: {shown(error)}")


class Folder:
    """An open folder, and what is done within it by the texts of paths."""

    def __init__(self, path: AnyPath, known: Identity | None = None, *, parent: int | None = None) -> None:
        """Open the folder at ``path``, or the one of that name in the open folder ``parent``.

        If its identity is ``known``, no link is followed. Raises :class:`InvalidStateError` if another
        folder, or a link, was put in the place of the known one.
        """
        self.path = os.path.abspath(os.fsdecode(path))
        try:
            if parent is not None:
                self._fd = os.open(os.path.basename(self.path), _FOLDER, dir_fd=parent)
            else:
                self._fd = os.open(self.path, _FOLDER if known else _FOLDER & ~os.O_NOFOLLOW)
        except OSError as error:
            if known and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise _replaced(self.path) from None
            raise InvalidValueError(
                f"the folder {self.path} can't be opened: {shown(error)}", path="path"
            ) from None
        if known and identity(os.fstat(self._fd)) != known:
            os.close(self._fd)
            raise _replaced(self.path)
        #: The folder opened last, since files that follow one another mostly lie in the same one.
        self._near: tuple[str, int] | None = None

    def close(self) -> None:
        self._let_go()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _let_go(self) -> None:
        if self._near is not None:
            os.close(self._near[1])
            self._near = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def fd(self) -> int:
        return self._fd

    # ── looking ──────────────────────────────────────────────────────────────────────────────

    def enter(self, fd: int, name: str) -> int | None:
        """A folder in an open folder, open; ``None`` if it is gone meanwhile. Raises :class:`OSError` if it
        can't be entered, :class:`NotADirectoryError` if something else has taken its place."""
        try:
            return os.open(name, _FOLDER, dir_fd=fd)
        except FileNotFoundError:
            return None

    def parent(self, text: str) -> tuple[int, bytes]:
        """The open folder that a path is in, and its name there; to be used before the next call."""
        above, _, name = text.rpartition("/")
        if not above:
            return self._fd, text_bytes(name)
        if self._near is None or self._near[0] != above:
            self._let_go()
            self._near = above, self._opened(above)
        return self._near[1], text_bytes(name)

    def _opened(self, text: str) -> int:
        fd = self._fd
        for name in text_bytes(text).split(b"/"):
            try:
                inner = os.open(name, _FOLDER, dir_fd=fd)
            finally:
                if fd != self._fd:
                    os.close(fd)
            fd = inner
        return fd

    def stat(self, text: str) -> os.stat_result | None:
        """What is at a path; ``None`` if nothing is, or a link or file is where a folder would be."""
        try:
            fd, name = self.parent(text)
            return os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise unreadable(text, error, "looked at") from None

    def read_link(self, text: str) -> bytes:
        fd, name = self.parent(text)
        return os.readlink(name, dir_fd=fd)

    @contextmanager
    def open_file(self, text: str) -> Iterator[int]:
        """A file, open for reading. Raises :class:`OSError` as the system does, and
        :class:`InvalidValueError` if something else took its place."""
        parent, name = self.parent(text)
        fd = os.open(name, _FILE, dir_fd=parent)
        try:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):
                raise refused(text, mode)
            yield fd
        finally:
            os.close(fd)

    # ── changing ─────────────────────────────────────────────────────────────────────────────

    def make_folder(self, text: str, mode: int = 0o700) -> None:
        """A folder, unless there is one."""
        fd, name = self.parent(text)
        try:
            os.mkdir(name, mode, dir_fd=fd)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                raise

    def write_file(
        self, text: str, pieces: Iterator[bytes] | list[bytes], mode: int, *, sync: bool = False
    ) -> None:
        """A new file; one that is there already raises."""
        parent, name = self.parent(text)
        fd = os.open(name, _NEW, 0o600, dir_fd=parent)
        try:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[os.write(fd, view) :]
            os.fchmod(fd, mode & MODE_BITS)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)

    def make_link(self, text: str, target: bytes) -> None:
        fd, name = self.parent(text)
        os.symlink(target, name, dir_fd=fd)

    def rename(self, old: str, new: str) -> None:
        """Put a file or link in the place of whatever file or link is there."""
        self._let_go()
        source, old_name = self.parent(old)
        source = os.dup(source)
        try:
            target, new_name = self.parent(new)
            os.rename(old_name, new_name, src_dir_fd=source, dst_dir_fd=target)
        finally:
            os.close(source)

    def set_folder_mode(self, text: str, mode: int) -> None:
        self._let_go()
        fd = self._opened(text)
        try:
            if stat.S_IMODE(os.fstat(fd).st_mode) != mode & MODE_BITS:
                os.fchmod(fd, mode & MODE_BITS)
        finally:
            os.close(fd)

    def unlock(self, text: str) -> None:
        """Let its owner change what is in a folder."""
        found = self.stat(text) if text else None
        if found is not None and stat.S_ISDIR(found.st_mode) and found.st_mode & 0o700 != 0o700:
            self._let_go()
            above, name = self.parent(text)
            _open_up(name, above)

    def remove(self, text: str) -> bool:
        """Remove a file, a link or an empty folder; whether it is gone."""
        found = self.stat(text)
        if found is None:
            return True
        self._let_go()
        fd, name = self.parent(text)
        try:
            if stat.S_ISDIR(found.st_mode):
                os.rmdir(name, dir_fd=fd)
            else:
                os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise unreadable(text, error, "removed") from None
        return True

    def remove_all(self, text: str) -> None:
        """Remove whatever is at a path. No link is followed."""
        self._let_go()
        if self.stat(text) is not None:
            fd, name = self.parent(text)
            remove_tree(name, fd)

    def sync(self, texts: set[str]) -> None:
        """Make sure that what was done in these folders survives a power cut."""
        self._let_go()
        for text in texts:
            with suppress(OSError):
                fd = self._opened(text) if text else os.dup(self._fd)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)


def _replaced(path: str) -> InvalidStateError:
    return InvalidStateError(
        f"the folder {path} was replaced: something else is in its place, and was neither read nor changed; "
        "put the folder back, or open or attach this one anew"
    )


def remove_tree(name: bytes | str, parent: int | None = None) -> None:
    """Remove a folder with all in it, or the file or link at its place; nothing needs to be there.

    Folders that may not be changed are opened up first. Inner folders are moved up into the outermost one
    before they are emptied: no nesting is too deep for the stack, or for the number of open files.
    """
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return
    except FileNotFoundError:
        return
    _open_up(name, parent)
    top = os.open(name, _FOLDER, dir_fd=parent)
    try:
        folders = _unlink_files(top)
        prefix, number = f".everthread-removing-{os.urandom(6).hex()}-", 0
        while folders:
            each = folders.pop()
            _open_up(each, top)
            fd = os.open(each, _FOLDER, dir_fd=top)
            try:
                for inner in _unlink_files(fd):
                    # Moving a folder changes its entry "..".
                    _open_up(inner, fd)
                    number += 1
                    os.rename(inner, f"{prefix}{number}", src_dir_fd=fd, dst_dir_fd=top)
                    folders.append(f"{prefix}{number}")
            finally:
                os.close(fd)
            os.rmdir(each, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _unlink_files(fd: int) -> list[str]:
    """Remove what is no folder from an open folder; return the names of the folders in it."""
    with os.scandir(fd) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=fd)
    return [name for name, is_folder in found if is_folder]


def _open_up(name: bytes | str, parent: int | None) -> None:
    """Let the owner of a folder change what is in it. A link is never followed, whoever put it there."""
    path_only = getattr(os, "O_PATH", None)
    if path_only is None:
        # Elsewhere than on Linux a folder that may not be read can't be opened, and stays as it is.
        return
    fd = os.open(name, path_only | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        mode = os.fstat(fd).st_mode
        if mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode) | 0o700)
    finally:
        os.close(fd)
