"""A tree of files: what stands at each path, and what differs between two trees.

In the document of a thread a tree is a dictionary from the text of a path to one value: a number is a folder
(its mode), bytes are a file, ``{"link": target}`` is a symbolic link. The bytes of a file are two of mode,
one that says how its content is kept, the id of the content, and its size; no part of them is text.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from everthread.errors import InvalidValueError, StateCorruptedError
from everthread.sandboxes.paths import DEPTH_MAX, parents, text_bytes, text_name

#: Where the document of a thread has its tree.
TREE = "files"
LINK = "link"

#: How a content is kept: in clear, or sealed for the persons whom it belongs to.
CLEAR, SEALED = 0, 1
ID_BYTES = 20
_HEAD = 3
#: What stays of a mode: who may read, write and run it.
MODE_BITS = 0o777
FOLDER_MODE = 0o755
FILE_MODE = 0o644

#: A folder, a file, a link.
Entry = int | bytes | dict[str, bytes]
Tree = dict[str, Entry]

Kind = Literal["file", "folder", "link"]


class FileEntry(msgspec.Struct, frozen=True):
    """A file of a tree. ``content`` is the id of what it holds; empty for an empty file."""

    mode: int
    size: int
    content: bytes = b""
    how: int = CLEAR

    def pack(self) -> bytes:
        size = self.size.to_bytes((self.size.bit_length() + 7) // 8, "big")
        return bytes((self.mode >> 8, self.mode & 0xFF, self.how)) + self.content + size

    @classmethod
    def unpack(cls, data: bytes, path: str = "") -> FileEntry:
        """Raises :class:`StateCorruptedError` for bytes that are no file."""
        if len(data) < _HEAD or data[2] not in (CLEAR, SEALED):
            raise StateCorruptedError(f"the tree says nothing sensible of {path!a}", where=path)
        mode, how, rest = data[0] << 8 | data[1], data[2], data[_HEAD:]
        if not rest:
            return cls(mode, 0, b"", how)
        if len(rest) < ID_BYTES:
            raise StateCorruptedError(f"the tree says nothing sensible of {path!a}", where=path)
        return cls(mode, int.from_bytes(rest[ID_BYTES:], "big"), rest[:ID_BYTES], how)


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a path without reading its content. ``size`` and ``mode`` are 0 for links; ``target``
    is set for links alone. ``personal``: the content is sealed for the persons whom it belongs to."""

    path: str
    kind: Kind
    mode: int = 0
    size: int = 0
    target: str | None = None
    personal: bool = False

    @property
    def mode_text(self) -> str:
        """As ``ls -l`` writes it."""
        bits = {"file": stat.S_IFREG, "folder": stat.S_IFDIR, "link": stat.S_IFLNK}[self.kind]
        return stat.filemode(bits | (self.mode or (0o777 if self.kind == "link" else 0)))


def link_target(entry: Mapping[str, Any], path: str) -> bytes:
    target = entry.get(LINK)
    if type(target) is not bytes or not target or b"\0" in target:
        raise StateCorruptedError(f"the tree says nothing sensible of the link {path!a}", where=path)
    return target


def describe(path: str, entry: Entry) -> FileInfo:
    """What a tree says of a path."""
    name = text_name(path)
    if type(entry) is int:
        return FileInfo(path=name, kind="folder", mode=entry & MODE_BITS)
    if type(entry) is bytes:
        file = FileEntry.unpack(entry, path)
        return FileInfo(
            path=name, kind="file", mode=file.mode & MODE_BITS, size=file.size, personal=file.how == SEALED
        )
    if type(entry) is dict:
        target = link_target(entry, path).decode("utf-8", "surrogateescape")
        return FileInfo(path=name, kind="link", target=target)
    raise StateCorruptedError(f"the tree says nothing sensible of {path!a}", where=path)


def read_tree(document: Any) -> Tree:
    """The tree of a document; none is an empty one. Raises :class:`StateCorruptedError`."""
    tree = document.get(TREE) if type(document) is dict else None
    if tree is None:
        return {}
    if type(tree) is not dict or not all(type(path) is str for path in tree):
        raise StateCorruptedError(f"{TREE!r} in the document of this thread is no tree of files", where=TREE)
    return tree


def check_tree(tree: Tree) -> None:
    """Raise :class:`StateCorruptedError` unless each path is one, has a sensible entry, and lies in folders
    only: a tree that passes leads nowhere out of its folder."""
    for path, entry in tree.items():
        parts = path.split("/")
        if "\0" in path or len(parts) > DEPTH_MAX + 1 or not {"", ".", ".."}.isdisjoint(parts):
            raise StateCorruptedError(f"{path[:120]!a} is no path of a tree", where=path)
        for above in parents(path):
            if type(tree.get(above, FOLDER_MODE)) is not int:
                raise StateCorruptedError(f"{path!a} lies in something that is no folder", where=path)
        try:
            text_bytes(path)
        except (InvalidValueError, UnicodeEncodeError):
            raise StateCorruptedError(f"{path[:120]!a} is no path of a tree", where=path) from None
        describe(path, entry)


def with_folders(tree: Tree) -> Tree:
    """The tree with the folders that it doesn't mention, since files were written into them."""
    whole: Tree = {}
    for path in sorted(tree):
        for above in parents(path):
            whole.setdefault(above, tree.get(above, FOLDER_MODE))
        whole[path] = tree[path]
    return whole


def below(tree: Tree, folder: str) -> Iterator[str]:
    """The paths in a folder, at any depth."""
    if not folder:
        yield from tree
        return
    prefix = f"{folder}/"
    for path in tree:
        if path.startswith(prefix):
            yield path


class FilesDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between two trees, by path."""

    added: tuple[FileInfo, ...] = ()
    removed: tuple[FileInfo, ...] = ()
    #: Before and after.
    changed: tuple[tuple[FileInfo, FileInfo], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def summary(self) -> str:
        """One line for people."""
        if not self:
            return "no file differs"
        return ", ".join(f"{count:,} {what}" for what, count in self.counts.items() if count)

    @property
    def counts(self) -> dict[str, int]:
        """How many were ``added``, ``changed`` and ``removed``."""
        return {"added": len(self.added), "changed": len(self.changed), "removed": len(self.removed)}

    def __str__(self) -> str:
        return self.summary()


def compare(old: Tree, new: Tree) -> FilesDiff:
    """What leads from one tree to another. Sealed contents that were written anew count as changed."""
    added = [describe(path, new[path]) for path in sorted(new.keys() - old.keys())]
    removed = [describe(path, old[path]) for path in sorted(old.keys() - new.keys())]
    both = sorted(path for path in new.keys() & old.keys() if new[path] != old[path])
    changed = [(describe(path, old[path]), describe(path, new[path])) for path in both]
    return FilesDiff(added=tuple(added), removed=tuple(removed), changed=tuple(changed))
