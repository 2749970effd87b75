"""A disk that fails: the n-th call about files answers EIO or ENOSPC, or kills.

    with FaultyDisk(directory) as disk:
        store = everthread.open(f"sqlite:///{directory}/store.db")
        disk.fail(3, errno.EIO)             # the third call from now on fails, once
        ...
        disk.heal()
        print(disk.calls)                   # what was asked of the disk since

There are two ways to get between SQLite and its files. ``through="system"`` replaces the system calls of
SQLite's own file system: a failure takes the way through SQLite that a real one takes, also one in shared
memory, but a sync can't be made to fail there. ``through="vfs"`` is a file system for SQLite: every call
that SQLite makes, syncs included, but an error that SQLite would have passed over (a failed checkpoint
behind a commit) reaches the caller too. Either becomes SQLite's default meanwhile. The functions of
:mod:`os` that write are wrapped both times, for stores made of plain files.

Only files below ``directory`` count. A write that runs out of space writes half of its bytes. One disk at
a time, and one thread at a time: what is replaced belongs to the whole process.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import apsw

from everthread.errors import InvalidStateError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["KILL", "DiskCall", "FaultyDisk", "Kind", "replace_system_calls"]


Kind = Literal["open", "read", "write", "truncate", "sync", "size", "delete", "map", "lock", "link"]

#: What runs out of space. Nothing else asks for any.
_NEEDS_SPACE = frozenset({"open", "write", "truncate", "sync", "map", "link"})

#: For :meth:`FaultyDisk.fail` in place of an error: the process dies instead.
KILL = -1


class DiskCall(NamedTuple):
    """One call: what it was for, and the name of its file."""

    kind: Kind
    file: str


class FaultyDisk:
    """Counts the calls about files below ``directory`` and lets chosen ones fail."""

    _active: FaultyDisk | None = None

    def __init__(
        self, directory: str | os.PathLike[str], *, through: Literal["system", "vfs"] = "system"
    ) -> None:
        self._through = through
        self._root = os.path.realpath(directory)
        #: The calls since the last :meth:`fail` or :meth:`heal`.
        self.calls: list[DiskCall] = []
        #: The calls that were made to fail, in order.
        self.failed: list[DiskCall] = []
        self._nth = 0
        self._error = 0
        self._times: int | None = 0
        self._due = 0
        #: Open files that count, by their descriptors.
        self.files: dict[int, str] = {}
        self._undo: list[Callable[[], None]] = []

    def fail(self, nth: int, error: int, *, times: int | None = 1) -> None:
        """Let the ``nth`` call from now on, counted from 1, fail with ``errno`` ``error``.

        ``times=None`` lets every later one fail too, until :meth:`heal`. With ``ENOSPC`` only calls count
        that may need space. :data:`KILL` in place of an error kills the process there.
        """
        self.heal()
        self._nth, self._error, self._times = nth, error, times

    def heal(self) -> None:
        """Let everything succeed from now on, and count anew."""
        self.calls.clear()
        self._nth = self._due = 0

    def check(self, kind: Kind, file: str, *, needs_space: bool = True) -> int:
        """The ``errno`` with which a call must fail, or 0."""
        if self._nth and self._error == errno.ENOSPC and not (needs_space and kind in _NEEDS_SPACE):
            return 0
        call = DiskCall(kind, os.path.basename(file))
        self.calls.append(call)
        if not self._nth:
            return 0
        self._due += 1
        if self._due < self._nth or (self._times is not None and self._due >= self._nth + self._times):
            return 0
        self.failed.append(call)
        if self._error == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._error

    # ── which files ──────────────────────────────────────────────────────────────────────────

    def counted(self, path: object) -> str:
        """The path if it is of a file that counts, else the empty text."""
        try:
            text = os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type]
        except TypeError:
            return ""
        return text if text.startswith(self._root + os.sep) else ""

    # ── getting in between ───────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        if FaultyDisk._active is not None:
            raise InvalidStateError("another FaultyDisk is in use; leave its block first")
        FaultyDisk._active = self
        if self._through == "vfs":
            self._undo.append(_FaultyVFS(self).unregister)
        else:
            self._undo.append(replace_system_calls(self))
        for name, wrapper in _os_functions(self).items():
            original = getattr(os, name)
            setattr(os, name, functools.wraps(original)(functools.partial(wrapper, original)))
            self._undo.append(functools.partial(setattr, os, name, original))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._undo:
            self._undo.pop()()
        FaultyDisk._active = None


# ── a file system for SQLite ─────────────────────────────────────────────────────────────────────

_IO_ERRORS: dict[Kind, int] = {
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "size": apsw.SQLITE_IOERR_FSTAT,
    "delete": apsw.SQLITE_IOERR_DELETE,
    "lock": apsw.SQLITE_IOERR_LOCK,
}


def _raise(kind: Kind, error: int) -> None:
    if error == errno.ENOSPC:
        raise apsw.FullError("the disk is full")
    if kind == "open":
        raise apsw.CantOpenError("the disk failed")
    failure = apsw.IOError("the disk failed")
    # The stubs of apsw don't know of it; SQLite is told by this which call failed.
    failure.extendedresult = _IO_ERRORS[kind]  # type: ignore[attr-defined]
    raise failure


class _FaultyVFS(apsw.VFS):
    """SQLite's own file system with calls that fail. The default one until it is unregistered."""

    def __init__(self, disk: FaultyDisk) -> None:
        super().__init__("everthread-faulty-disk", "unix", makedefault=True)
        self._disk = disk

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = self._disk.counted(name.filename() if isinstance(name, apsw.URIFilename) else name)
        if not path:
            return apsw.VFSFile("unix", name, flags)
        creates = bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        if error := self._disk.check("open", path, needs_space=creates):
            _raise("open", error)
        return _FaultyFile(name, flags, self._disk, path)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        path = self._disk.counted(filename)
        if path and (error := self._disk.check("delete", path)):
            _raise("delete", error)
        super().xDelete(filename, syncdir)


class _FaultyFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], disk: FaultyDisk, path: str) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk
        self._path = path

    def _call(self, kind: Kind) -> None:
        if error := self._disk.check(kind, self._path):
            _raise(kind, error)

    def xRead(self, amount: int, offset: int) -> bytes:
        self._call("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:
        if error := self._disk.check("write", self._path):
            if error == errno.ENOSPC and len(data) > 1:
                super().xWrite(bytes(data)[: len(data) // 2], offset)
            _raise("write", error)
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._call("truncate")
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._call("sync")
        super().xSync(flags)

    def xFileSize(self) -> int:
        self._call("size")
        return super().xFileSize()

    def xLock(self, level: int) -> None:
        self._call("lock")
        super().xLock(level)


def _os_functions(disk: FaultyDisk) -> dict[str, Callable[..., Any]]:
    """What is put around functions of :mod:`os`, which is handed to it as the first argument."""

    def raise_for(kind: Kind, file: str, *, needs_space: bool = True) -> None:
        if file and (error := disk.check(kind, file, needs_space=needs_space)):
            raise OSError(error, os.strerror(error), file)

    def open_(real: Any, path: Any, flags: int, *rest: Any, **options: Any) -> int:
        file = disk.counted(path)
        raise_for("open", file, needs_space=bool(flags & os.O_CREAT))
        handle: int = real(path, flags, *rest, **options)
        if file:
            disk.files[handle] = file
        return handle

    def close(real: Any, handle: int) -> None:
        disk.files.pop(handle, None)
        real(handle)

    def on_file(kind: Kind) -> Callable[..., Any]:
        def call(real: Any, handle: Any, *rest: Any, **options: Any) -> Any:
            number = handle if isinstance(handle, int) else handle.fileno()
            raise_for(kind, disk.files.get(number, ""))
            return real(handle, *rest, **options)

        return call

    def write(real: Any, handle: int, data: Any, *rest: Any) -> Any:
        file = disk.files.get(handle, "")
        if file and (error := disk.check("write", file)):
            if error == errno.ENOSPC and len(data) > 1:
                real(handle, bytes(data)[: len(data) // 2], *rest)
            raise OSError(error, os.strerror(error), file)
        return real(handle, data, *rest)

    def on_path(kind: Kind) -> Callable[..., Any]:
        def call(real: Any, path: Any, *rest: Any, **options: Any) -> Any:
            target = rest[0] if rest and kind == "link" else path
            raise_for(kind, disk.counted(target) or disk.counted(path))
            return real(path, *rest, **options)

        return call

    return {
        "open": open_,
        "close": close,
        "write": write,
        "pwrite": write,
        "read": on_file("read"),
        "pread": on_file("read"),
        "fsync": on_file("sync"),
        "fdatasync": on_file("sync"),
        "ftruncate": on_file("truncate"),
        "truncate": on_path("truncate"),
        "mkdir": on_path("link"),
        "unlink": on_path("delete"),
        "remove": on_path("delete"),
        "rename": on_path("link"),
        "replace": on_path("link"),
        "link": on_path("link"),
    }


# The system calls of SQLite's file system, replaced by ones that may fail. See ``faults``.


_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_TEXT, _SIZE = ctypes.c_char_p, ctypes.c_size_t
#: F_SETLK and F_SETLKW, and the place and value of l_type in struct flock, on Linux.
_LOCKING = (6, 7)
_UNLOCK = 2


def replace_system_calls(disk: FaultyDisk) -> Callable[[], None]:
    """Let ``disk`` decide about every call; returns what undoes it."""
    vfs = apsw.VFS("everthread-system-calls", "unix")
    replacements = _system_calls(disk, vfs)
    for name, replacement in replacements.items():
        vfs.xSetSystemCall(name, ctypes.cast(replacement, ctypes.c_void_p).value or 0)

    def undo() -> None:
        # The replacements must live as long as SQLite may call them.
        for name in replacements:
            vfs.xSetSystemCall(name, 0)
        vfs.unregister()

    return undo


def _system_calls(disk: FaultyDisk, vfs: apsw.VFS) -> dict[str, Any]:
    """What takes the place of SQLite's system calls, by their names."""
    found: dict[str, Any] = {}

    def replace(name: str, signature: tuple[Any, ...], make: Callable[[FaultyDisk, Any], Any]) -> None:
        pointer = vfs.xGetSystemCall(name)
        if pointer:
            prototype = ctypes.CFUNCTYPE(*signature, use_errno=True)
            found[name] = prototype(make(disk, prototype(pointer)))

    replace("open", (_INT, _TEXT, _INT, _INT), _open)
    replace("close", (_INT, _INT), _close)
    for name in ("pread", "pread64"):
        replace(name, (_LONG, _INT, _POINTER, _SIZE, _LONG), _on_file("read"))
    for name in ("pwrite", "pwrite64"):
        replace(name, (_LONG, _INT, _POINTER, _SIZE, _LONG), _on_file("write"))
    replace("ftruncate", (_INT, _INT, _LONG), _on_file("truncate"))
    replace("unlink", (_INT, _TEXT), _unlink)
    replace("mmap", (_POINTER, _POINTER, _SIZE, _INT, _INT, _INT, _LONG), _map)
    if os.uname().sysname == "Linux":
        # Elsewhere a variable argument isn't passed as this replacement expects it.
        replace("fcntl", (_INT, _INT, _INT, _POINTER), _fcntl)
    return found


def _open(disk: FaultyDisk, real: Any) -> Any:
    def call(path: bytes, flags: int, mode: int) -> int:
        counted = disk.counted(path)
        creates = bool(flags & os.O_CREAT)
        if counted and (error := disk.check("open", counted, needs_space=creates)):
            return _failed(error)
        handle: int = real(path, flags, mode)
        if counted and handle >= 0:
            disk.files[handle] = counted
        return handle

    return call


def _close(disk: FaultyDisk, real: Any) -> Any:
    def call(handle: int) -> int:
        disk.files.pop(handle, None)
        return int(real(handle))

    return call


def _on_file(kind: Kind) -> Callable[[FaultyDisk, Any], Any]:
    def make(disk: FaultyDisk, real: Any) -> Any:
        def call(handle: int, *rest: Any) -> int:
            file = disk.files.get(handle)
            if file and (error := disk.check(kind, file)):
                if kind == "write" and error == errno.ENOSPC and rest[1] > 1:
                    real(handle, rest[0], rest[1] // 2, rest[2])
                return _failed(error)
            return int(real(handle, *rest))

        return call

    return make


def _fcntl(disk: FaultyDisk, real: Any) -> Any:
    def call(handle: int, command: int, argument: int | None) -> int:
        file = disk.files.get(handle)
        locks = command in _LOCKING and argument and _lock_type(argument) != _UNLOCK
        if file and locks and (error := disk.check("lock", file)):
            return _failed(error)
        return int(real(handle, command, argument))

    return call


def _unlink(disk: FaultyDisk, real: Any) -> Any:
    def call(path: bytes) -> int:
        counted = disk.counted(path)
        if counted and (error := disk.check("delete", counted)):
            return _failed(error)
        return int(real(path))

    return call


def _map(disk: FaultyDisk, real: Any) -> Any:
    def call(at: int | None, size: int, how: int, flags: int, handle: int, offset: int) -> int:
        file = disk.files.get(handle)
        if file and (error := disk.check("map", file)):
            return _failed(error)
        return real(at, size, how, flags, handle, offset) or 0

    return call


def _failed(error: int) -> int:
    ctypes.set_errno(error)
    return -1


def _lock_type(address: int) -> int:
    return ctypes.c_short.from_address(address).value
