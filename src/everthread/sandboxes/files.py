"""``Files``: a tree of files whose versions are the versions of a thread, without any directory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.arguments import check_name, with_extra
from everthread.errors import (
    ErasedError,
    InvalidStateError,
    InvalidValueError,
    LimitError,
    MissingDependencyError,
    NotFoundError,
    UsageError,
)
from everthread.history.logs import EMPTY_LOG, LogState
from everthread.sandboxes.chunks import PIECE_BYTES_MAX
from everthread.sandboxes.contents import LOG, Contents
from everthread.sandboxes.paths import AnyPath, folder_text, is_within, parents, path_text, text_name
from everthread.sandboxes.tree import (
    FILE_MODE,
    FOLDER_MODE,
    LINK,
    MODE_BITS,
    SEALED,
    TREE,
    Entry,
    FileEntry,
    FileInfo,
    FilesDiff,
    Tree,
    below,
    compare,
    describe,
    read_tree,
)
from everthread.threads.sync.thread import Thread
from everthread.values import Personal

if TYPE_CHECKING:
    from everthread.sandboxes.directory import Restored, Saved
    from everthread.sandboxes.file_system import EverthreadFileSystem
    from everthread.threads.sync.handle import AnyVersion


class FileLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on a tree. Each violation raises :class:`LimitError` and names the path."""

    file_bytes_max: int = 1024 * 1024 * 1024
    files_max: int = 200_000
    tree_bytes_max: int = 16 * 1024 * 1024 * 1024


DEFAULT_FILE_LIMITS = FileLimits()


class SnapshotRef(msgspec.Struct, frozen=True):
    """A tree of files at one version: the name of its thread and the id of the version. Small, and safe to
    keep anywhere: in a document, in the history of an engine."""

    thread: str
    version: str

    def plain(self) -> dict[str, str]:
        """As JSON-like data; :meth:`from_plain` reads it back."""
        return {"thread": self.thread, "version": self.version}

    @classmethod
    def from_plain(cls, data: Any) -> SnapshotRef:
        """Raises :class:`InvalidValueError` for anything else."""
        if isinstance(data, SnapshotRef):
            return data
        try:
            return msgspec.convert(dict(data), cls)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise InvalidValueError(f"this is no snapshot of files: {error}", path="snapshot") from error

    def __str__(self) -> str:
        return f"{self.thread} at {self.version}"


class FilesView:
    """A tree of files at one version, read only. Paths are relative to it."""

    def __init__(self, contents: Contents, tree: Tree, state: LogState | None, version: str | None) -> None:
        self._contents = contents
        self._view = tree
        self._state = state
        #: The id of the version; ``None`` before the first one.
        self.version = version

    @property
    def _tree(self) -> Tree:
        return self._view

    @property
    def tree(self) -> Tree:
        """What stands at each path, as the document has it. To be read, never changed."""
        return self._tree

    def list(self, folder: AnyPath = "", *, recursive: bool = True) -> list[FileInfo]:
        """What is in a folder, by path: at any depth, or with ``recursive=False`` in itself only."""
        tree, at = self._tree, folder_text(folder)
        self._check_folder(tree, at)
        found = {path: tree[path] for path in below(tree, at)}
        if not recursive:
            start = len(at) + 1 if at else 0
            near: Tree = {}
            for path, entry in found.items():
                child, slash, _ = path[start:].partition("/")
                name = path[:start] + child
                near[name] = tree.get(name, FOLDER_MODE) if slash else entry
            found = near
        return [describe(path, found[path]) for path in sorted(found)]

    def info(self, path: AnyPath) -> FileInfo:
        """What is at a path. Raises :class:`NotFoundError`."""
        text = path_text(path)
        return describe(text, self._entry(text))

    def exists(self, path: AnyPath) -> bool:
        """Whether there is a file, folder or link at a path."""
        text, tree = path_text(path), self._tree
        return text in tree or any(True for _ in below(tree, text))

    def read(self, path: AnyPath) -> bytes:
        """The content of a file, in clear. Raises :class:`NotFoundError`, :class:`UsageError` for a folder or
        a link, :class:`ErasedError` if it belonged to somebody who was erased."""
        return b"".join(self.stream(path))

    def stream(self, path: AnyPath) -> Iterator[bytes]:
        """As :meth:`read`, piece by piece."""
        text = path_text(path)
        return self.pieces(text, self._file(text))

    def pieces(self, text: str, entry: FileEntry) -> Iterator[bytes]:
        """The content of a file of the tree, by its text and entry."""
        if not entry.content:
            return
        try:
            yield from self._contents.stream(entry.content, self._state)
        except ErasedError as error:
            raise ErasedError(f"{text_name(text)!r}: {error}") from None

    def load(self, entries: Mapping[str, FileEntry]) -> dict[str, bytes]:
        """The contents of several small files; read together, which takes less time."""
        contents = self._contents.load(
            [each.content for each in entries.values() if each.content], self._state
        )
        return {path: contents.get(each.content, b"") for path, each in entries.items()}

    def file_system(self) -> EverthreadFileSystem:
        """The same for fsspec. Raises :class:`MissingDependencyError` if fsspec isn't installed."""
        try:
            from everthread.sandboxes.file_system import EverthreadFileSystem
        except ModuleNotFoundError as error:
            raise MissingDependencyError(f"this needs fsspec: {with_extra('fsspec')}") from error
        return EverthreadFileSystem(self)

    def _entry(self, text: str, what: str = "file") -> Entry:
        tree = self._tree
        if text in tree:
            return tree[text]
        if any(True for _ in below(tree, text)):
            return FOLDER_MODE
        raise NotFoundError(f"there is no {what} {text_name(text)!r}")

    def _file(self, text: str) -> FileEntry:
        entry = self._entry(text)
        if type(entry) is not bytes:
            what = "a folder" if type(entry) is int else "a link"
            raise UsageError(f"{text_name(text)!r} is {what}, not a file")
        return FileEntry.unpack(entry, text)

    def _check_folder(self, tree: Tree, at: str) -> None:
        if at and type(self._entry(at, "folder")) is not int:
            raise UsageError(f"{text_name(at)!r} is no folder")


class Files(FilesView):
    """A tree of files on a thread: a snapshot is a version, a fork a fork, and going back is going back.

    Changes are kept in the handle until :meth:`save`. The thread may hold other state beside its files, which
    is committed with them. With a ``subject`` every content that is written is sealed for that person; one
    that takes the place of a sealed content is sealed for whom that one belonged to. Names and sizes are kept
    in clear.
    """

    def __init__(
        self, thread: Thread, *, subject: str | None = None, limits: FileLimits = DEFAULT_FILE_LIMITS
    ) -> None:
        if not isinstance(thread, Thread):
            raise UsageError(
                "Files() takes a thread of a blocking store: Files(store.thread(…)); AsyncFiles(thread) is "
                "for those of an async store"
            )
        super().__init__(Contents(thread), {}, None, None)
        self.thread = thread
        self.limits = limits
        self._subject = None if subject is None else check_name(subject, "subject")
        #: The head that the tree was read from.
        self._stands: Any = None
        self._is_read = self._is_edited = False

    # ── where it stands ──────────────────────────────────────────────────────────────────────

    @property
    def _tree(self) -> Tree:
        handle = self.thread.handle
        handle.load()
        if not self._is_read or handle.head is not self._stands or (self._is_edited and not handle.dirty):
            self._read_tree()
        return self._view

    def _read_tree(self) -> None:
        handle = self.thread.handle
        if handle.document is not None and handle.document.dirty:
            found: Any = self.thread.state.get(TREE)
            document: Any = (
                {} if found is None else {TREE: found.plain() if hasattr(found, "plain") else found}
            )
        else:
            document = handle.head.build_document() if handle.head is not None else {}
            self._contents.settle()
        self._view = read_tree(document)
        self._stands, self._is_read, self._is_edited = handle.head, True, handle.dirty
        self.version = handle.head.version.id if handle.head is not None else None

    @property
    def head(self) -> SnapshotRef | None:
        """The version that this handle stands on, without what isn't saved yet."""
        version = self.thread.head
        return None if version is None else SnapshotRef(self.thread.name, version.id)

    def at(self, version: AnyVersion | SnapshotRef) -> FilesView:
        """The tree as it was at a version, read only."""
        handle = self.thread.handle
        line, head = handle.require()
        if isinstance(version, SnapshotRef):
            version = version.version
        found = handle.find_version(version)
        if found.id == head.version.id:
            document, logs = head.build_document(), head.logs
        else:
            snapshot = handle.core.reader.load(line, found.seq).snapshot
            document, logs = snapshot.document, snapshot.logs
        return FilesView(self._contents, read_tree(document), logs.get(LOG, EMPTY_LOG), found.id)

    def diff(
        self, a: AnyVersion | SnapshotRef | None, b: AnyVersion | SnapshotRef | None = None
    ) -> FilesDiff:
        """What differs from ``a`` (``None``: nothing at all) to ``b`` (by default: as it is now)."""
        old = {} if a is None else self.at(a).tree
        return compare(old, self.tree if b is None else self.at(b).tree)

    # ── changing ─────────────────────────────────────────────────────────────────────────────

    def write(self, path: AnyPath, data: bytes | bytearray | str | Personal, mode: int | None = None) -> None:
        """Put a file in its place; text as UTF-8. Its mode stays, unless one is given. A ``Personal`` with
        bytes or text is sealed.

        Raises :class:`InvalidValueError` if a folder is there or a file is where a folder would be,
        :class:`LimitError` if it is too large.
        """
        seal: Callable[[bytes], Personal] | None = None
        if isinstance(data, Personal):
            personal = data
            seal, data = (lambda piece: Personal.from_sources([personal], piece)), personal.value
        if isinstance(data, str):
            data = data.encode()
        if not isinstance(data, bytes | bytearray):
            raise InvalidValueError(f"a file holds bytes or text, not {type(data).__name__}", path="data")
        text = path_text(path)
        before = self._place(text)
        if mode is None:
            mode = before.mode if before is not None else FILE_MODE
        self.put(text, io.BytesIO(bytes(data)).read, mode, before, seal)

    def put(
        self,
        text: str,
        read: Callable[[int], bytes],
        mode: int,
        before: FileEntry | None,
        seal: Callable[[bytes], Personal] | None = None,
    ) -> FileEntry:
        """Put what ``read(count)`` gives in its place, by the text of its path."""
        made = self.store_content(text, read, mode, before, seal)
        self.set_entry(text, made.pack())
        return made

    def store_content(
        self,
        text: str,
        read: Callable[[int], bytes],
        mode: int,
        before: FileEntry | None,
        seal: Callable[[bytes], Personal] | None = None,
    ) -> FileEntry:
        """Only the content, to be committed; the tree stays as it is."""
        self.thread.handle.require_writable()
        limited = _Limited(read, self.limits.file_bytes_max, text)
        return self._contents.put(limited.read, mode & MODE_BITS, before, seal or self.seal_for(before))

    def seal_for(self, before: FileEntry | None) -> Callable[[bytes], Personal] | None:
        """How a content is sealed that takes the place of another."""
        if before is not None and before.how == SEALED and before.content:
            owner = self._contents.personal(before.content)
            if owner is not None:
                return lambda piece: Personal.from_sources([owner], piece)
        subject = self._subject
        return None if subject is None else lambda piece: Personal(subject, piece)

    @property
    def seals(self) -> bool:
        """Whether what is written is sealed for one person."""
        return self._subject is not None

    def _place(self, text: str) -> FileEntry | None:
        """The file that is at a path; raises if something else is in its place."""
        self._check_parents(text)
        tree = self._tree
        entry = tree.get(text)
        if type(entry) is int or (entry is None and any(True for _ in below(tree, text))):
            raise InvalidValueError(f"{text_name(text)!r} is a folder; remove() it first", path=text)
        if entry is None and len(tree) >= self.limits.files_max:
            raise LimitError(
                f"{text_name(text)!r} would be one more than {self.limits.files_max:,} files", path=text
            )
        return FileEntry.unpack(entry, text) if type(entry) is bytes else None

    def _check_parents(self, text: str) -> None:
        tree = self._tree
        for above in parents(text):
            if type(tree.get(above, FOLDER_MODE)) is not int:
                raise InvalidValueError(
                    f"{text_name(text)!r} would lie in {text_name(above)!r}, which is no folder", path=text
                )

    def make_folder(self, path: AnyPath, mode: int = FOLDER_MODE) -> None:
        """An empty folder, which is kept; folders with something in them needn't be made."""
        text = path_text(path)
        self._check_parents(text)
        if type(self._tree.get(text, FOLDER_MODE)) is not int:
            raise InvalidValueError(f"{text_name(text)!r} is a file; remove() it first", path=text)
        self.set_entry(text, mode & MODE_BITS)

    def link(self, path: AnyPath, target: AnyPath) -> None:
        """A symbolic link. It is kept as it is, and never followed here."""
        text = path_text(path)
        self._place(text)
        raw = target.encode("utf-8", "surrogateescape") if isinstance(target, str) else bytes(_raw(target))
        if not raw or b"\0" in raw:
            raise InvalidValueError("the target of a link is a path", path="target")
        self.set_entry(text, {LINK: raw})

    def remove(self, path: AnyPath, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; with ``recursive`` a folder and all in it.

        Raises :class:`NotFoundError`, :class:`InvalidStateError` for a folder that isn't empty.
        """
        text = path_text(path)
        self._entry(text)
        inside = list(below(self._tree, text))
        if inside and not recursive:
            raise InvalidStateError(
                f"{text_name(text)!r} isn't empty; remove(path, recursive=True) removes it"
            )
        for each in inside:
            self.set_entry(each, None)
        if text in self._tree:
            self.set_entry(text, None)

    def move(self, path: AnyPath, to: AnyPath) -> None:
        """Give a file, a link or a folder with all in it another path, which must be free."""
        old, new = path_text(path), path_text(to, "to")
        self._entry(old)
        if self.exists(to):
            raise InvalidValueError(f"{text_name(new)!r} is there already", path="to")
        if is_within(new, old):
            raise InvalidValueError(f"{text_name(new)!r} lies in {text_name(old)!r} itself", path="to")
        self._check_parents(new)
        for each in [old, *below(self._tree, old)]:
            if each in self._tree:
                entry = self._tree[each]
                self.set_entry(each, None)
                self.set_entry(new + each[len(old) :], entry)

    def set_entry(self, text: str, entry: Entry | None) -> None:
        """Put an entry into the tree, or take it out, by the text of its path."""
        tree = self._tree
        state = self.thread.state
        if TREE not in state:
            state[TREE] = {}
        if entry is None:
            del state[TREE][text]
            del tree[text]
        elif text not in tree or tree[text] != entry:
            state[TREE][text] = entry
            tree[text] = entry
        self._is_edited = True

    # ── saving ───────────────────────────────────────────────────────────────────────────────

    @property
    def pending_bytes(self) -> int:
        """About how many bytes of contents wait for :meth:`save`."""
        return self._contents.pending_bytes

    def save(
        self,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> SnapshotRef:
        """Make what was changed a version of the thread, durable when this returns: see ``thread.commit()``,
        which raises the same."""
        tree = self._tree
        state = self.thread.state
        if TREE not in state and self.thread.head is None:
            # An empty tree is one, too.
            state[TREE] = {}
        if self._is_edited and self._contents.is_crowded(len(tree)):
            entries = (FileEntry.unpack(entry, text) for text, entry in tree.items() if type(entry) is bytes)
            self._contents.release(entry.content for entry in entries if entry.content)
        version = self.thread.commit(label, metadata, key)
        if self.thread.handle.head is not None and self.thread.handle.head.version.id == version.id:
            self._contents.settle()
            self._view, self._stands, self._is_edited = tree, self.thread.handle.head, False
        self.version = version.id
        return SnapshotRef(self.thread.name, version.id)

    def discard(self) -> None:
        """Forget what wasn't saved."""
        self.thread.discard()
        self._contents.settle()
        self._is_read = False

    def fork(self, name: str, at: AnyVersion | SnapshotRef | None = None, *, key: str | None = None) -> Files:
        """The files of a new thread that shares this one's past: see ``thread.fork()``. O(1)."""
        version = at.version if isinstance(at, SnapshotRef) else at
        forked = self.thread.fork(name, version, key=key)
        return Files(forked, subject=self._subject, limits=self.limits)

    def rewind(self, version: AnyVersion | SnapshotRef) -> SnapshotRef:
        """Go back to an earlier version: see ``thread.rewind()``. O(1), itself a version."""
        made = self.thread.rewind(version.version if isinstance(version, SnapshotRef) else version)
        return SnapshotRef(self.thread.name, made.id)

    # ── directories ──────────────────────────────────────────────────────────────────────────

    def save_directory(
        self, path: AnyPath, label: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> Saved:
        """Make the tree what a directory holds, and save it as one version: the old tree or the new one,
        whatever happens on the way. Links, modes of files and folders and empty folders are kept.

        Raises :class:`InvalidValueError` for devices, sockets and pipes, :class:`LimitError`, and
        :class:`StorageWriteError` for what can't be read, each naming the path; nothing is saved then.
        """
        from everthread.sandboxes.directory import save_directory

        return save_directory(self, path, label=label, metadata=metadata)

    def restore_directory(self, path: AnyPath, at: AnyVersion | SnapshotRef | None = None) -> Restored:
        """Make a directory what the tree is, now or at a version. It must not exist, or be empty.

        It is made under another name and renamed when it is complete.
        """
        from everthread.sandboxes.directory import restore_directory

        return restore_directory(self if at is None else self.at(at), path)

    def __repr__(self) -> str:
        return f"<files of {self.thread.name!r}>"


class _Limited:
    """Reads a content up to a limit."""

    def __init__(self, read: Callable[[int], bytes], most: int, text: str) -> None:
        self._read = read
        self._left = self._most = most
        self._text = text

    def read(self, count: int) -> bytes:
        data = self._read(count)
        self._left -= len(data)
        if self._left < 0:
            raise LimitError(
                f"{text_name(self._text)!r} is larger than file_bytes_max ({self._most:,} bytes)",
                path=self._text,
            )
        return data


def _raw(path: Any) -> bytes:
    import os

    return os.fsencode(path)


#: Contents up to this size are read together.
SMALL_BYTES = PIECE_BYTES_MAX
