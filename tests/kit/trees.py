"""Random directories, random changes to them, and what a directory holds, read without any of the library."""

from __future__ import annotations

import os
import random
import shutil
import stat
from pathlib import Path

_NAMES = (
    b"a", b"b.txt", b"main.py", b"with space", b"new\nline", b"\xff\xfe", b"back\\slash", b"\\xff",
    "ünïcode".encode(), b"-rf", b"a'b\"c", b"$HOME", b"*", b"..dots", b"x" * 200, b"\x01\x02",
)  # fmt: skip
_MODES = (0o644, 0o755, 0o600, 0o640, 0o444, 0o700)
_FOLDER_MODES = (0o755, 0o700, 0o750)

#: What a directory holds, by path: (kind, mode, content or target).
Held = dict[bytes, tuple[str, int, bytes]]


def held(root: str | os.PathLike[str]) -> Held:
    """Everything in a directory, bit by bit."""
    found: Held = {}
    top = os.fsencode(root)
    for folder, folders, files in os.walk(top):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                kind = ("link", 0, os.readlink(path))
            elif stat.S_ISDIR(mode):
                kind = ("folder", stat.S_IMODE(mode), b"")
            else:
                with open(path, "rb") as file:
                    kind = ("file", stat.S_IMODE(mode), file.read())
            found[os.path.relpath(path, top)] = kind
    return found


def _content(rng: random.Random, large: int) -> bytes:
    match rng.randrange(12):
        case 0:
            return b""
        case 1:
            return rng.randbytes(rng.randrange(1, 3000))
        case 2 if large:
            return rng.randbytes(rng.randrange(large))
        case 3:
            return b"\n" * rng.randrange(1, 50)
        case _:
            lines = [
                f"line {rng.randrange(500)} {'x' * rng.randrange(60)}" for _ in range(rng.randrange(200))
            ]
            return "\n".join(lines).encode()


def _edited(rng: random.Random, data: bytes, large: int) -> bytes:
    if rng.random() < 0.3 or not data:
        return _content(rng, large)
    lines = data.split(b"\n")
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(lines) + 1)
        lines[at : at + rng.randrange(3)] = [
            rng.randbytes(rng.randrange(20)) for _ in range(rng.randrange(4))
        ]
    return b"\n".join(lines)


class RandomTree:
    """A directory that changes at random, from one seed."""

    def __init__(self, root: Path, rng: random.Random, *, large: int = 0) -> None:
        self.root = os.fsencode(root)
        self._rng = rng
        self._large = large
        os.makedirs(self.root, exist_ok=True)

    def _folders(self) -> list[bytes]:
        return [self.root, *(os.path.join(f, n) for f, ns, _ in os.walk(self.root) for n in ns
                             if not os.path.islink(os.path.join(f, n)))]  # fmt: skip

    def _files(self) -> list[bytes]:
        return [
            path
            for f, _, ns in os.walk(self.root)
            for n in ns
            if not os.path.islink(path := os.path.join(f, n))
        ]

    def _free(self) -> bytes:
        for _ in range(20):
            path = os.path.join(self._rng.choice(self._folders()), self._rng.choice(_NAMES))
            if not os.path.lexists(path) and len(path) < 1500:
                return path
        return os.path.join(self.root, b"n%d" % self._rng.randrange(10**9))

    def grow(self) -> None:
        rng, path = self._rng, self._free()
        match rng.randrange(8):
            case 0 | 1:
                os.mkdir(path)
                os.chmod(path, rng.choice(_FOLDER_MODES))
            case 2:
                target = rng.choice(
                    (b"a", b"../../../etc/passwd", b"/", b"no such", b".", b"\xff", b"new\nline")
                )
                os.symlink(target, path)
            case _:
                with open(path, "wb") as file:
                    file.write(_content(rng, self._large))
                os.chmod(path, rng.choice(_MODES))

    def change(self) -> None:
        """One random change: a file, link or folder comes, goes, moves, or becomes another."""
        rng, files = self._rng, self._files()
        what = rng.randrange(10)
        if what < 3 or not files:
            self.grow()
        elif what < 6:
            path = rng.choice(files)
            with open(path, "rb") as file:
                data = file.read()
            os.chmod(path, 0o600)
            with open(path, "wb") as file:
                file.write(_edited(rng, data, self._large))
            os.chmod(path, rng.choice(_MODES))
        elif what == 6:
            os.unlink(rng.choice(files))
        elif what == 7:
            os.rename(rng.choice(files), self._free())
        elif what == 8:
            os.chmod(rng.choice(files), rng.choice(_MODES))
        else:
            self._turn_around(rng.choice(files))

    def _turn_around(self, path: bytes) -> None:
        """A file becomes a folder, or a folder goes with all in it."""
        folders = self._folders()[1:]
        if folders and self._rng.random() < 0.5:
            shutil.rmtree(self._rng.choice(folders))
        else:
            os.unlink(path)
            os.mkdir(path)
