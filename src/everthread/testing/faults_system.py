"""The system calls of SQLite's file system, replaced by ones that may fail. See ``faults``."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import apsw

if TYPE_CHECKING:
    from everthread.testing.faults import FaultyDisk, Kind

__all__ = ["replace_system_calls"]

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
