"""A directory saved as a tree of files, and a tree of files restored as a directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from everthread.arguments import counted
from everthread.errors import (
    ErasedError,
    EverthreadError,
    InvalidStateError,
    InvalidValueError,
    LimitError,
    StorageWriteError,
)
from everthread.sandboxes.chunks import PIECE_BYTES_MAX, content_id, cut, parts_id
from everthread.sandboxes.disk import (
    WITHOUT_CONTENT,
    Folder,
    Identity,
    Signature,
    kind_in_words,
    refused,
    remove_tree,
    signature,
    unreadable,
)
from everthread.sandboxes.paths import AnyPath, check_size, name_text, shown, text_name
from everthread.sandboxes.stat_cache import StatCache, is_settled, now_ns
from everthread.sandboxes.tree import (
    FOLDER_MODE,
    LINK,
    MODE_BITS,
    SEALED,
    Entry,
    FileEntry,
    Tree,
    check_tree,
    link_target,
    with_folders,
)

if TYPE_CHECKING:
    from everthread.sandboxes.files import FileLimits, Files, FilesView, SnapshotRef

#: A file that others write while it is read is read again so often.
_TRIES = 3
#: Contents that wait for a commit are committed when they are as many bytes as this, before the tree: a large
#: directory doesn't have to be in memory at once.
_FLUSH_BYTES = 32 * 1024 * 1024
#: How many bytes of small files are read from the store at a time.
_BATCH_BYTES = 8 * 1024 * 1024
#: Where a restore keeps what it is about to put in place. Never recorded, whatever is in it.
RESTORING = ".everthread-restoring"
#: Beside a directory that is being made.
_UNFINISHED = ".everthread-unfinished-"


class Choice(Protocol):
    """Says what of a directory is saved."""

    @property
    def digest(self) -> bytes:
        """What these rules are known by: others may choose differently."""

    def enter(self, prefix: str, fd: int) -> None:
        """A folder is come to, before anything in it is asked for."""

    def enters(self, text: str, name: str, is_folder: bool) -> bool:
        """Whether something belongs to the tree, by its path."""

    def objection(self, text: str, data: bytes) -> str | None:
        """Why a content may not be stored, if so."""


class Everything:
    """A choice that leaves out only what can't be saved: pipes, sockets, devices, unreadable files, and what
    exceeds a limit."""

    digest = b""

    def enter(self, prefix: str, fd: int) -> None:
        pass

    def enters(self, text: str, name: str, is_folder: bool) -> bool:
        return True

    def objection(self, text: str, data: bytes) -> str | None:
        return None


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What saving a directory came to. ``left_out`` names what isn't in the version and why; ``unsettled``
    names files that others wrote while they were read: they are in it as they were before, or not at all."""

    snapshot: SnapshotRef
    added: int = 0
    changed: int = 0
    removed: int = 0
    left_out: Mapping[str, str] = {}
    unsettled: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the version holds the content of every file. Pipes, sockets and devices have none."""
        return not self.unsettled and WITHOUT_CONTENT.issuperset(self.left_out.values())

    def __str__(self) -> str:
        words = f"{self.added:,} added, {self.changed:,} changed, {self.removed:,} removed"
        out = f"; {counted(len(self.left_out), 'path')} left out" if self.left_out else ""
        return f"{words}{out} ({self.snapshot})"


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What restoring a directory came to. ``kept`` names what was left as it was on disk, and why;
    ``erased`` names files whose content is gone because it belonged to somebody who was erased."""

    version: str | None
    written: int = 0
    removed: int = 0
    kept: Mapping[str, str] = {}
    erased: tuple[str, ...] = ()

    def __str__(self) -> str:
        kept = f"; {counted(len(self.kept), 'path')} left as they were" if self.kept else ""
        return f"{self.written:,} written, {self.removed:,} removed{kept}"


# ── saving ──────────────────────────────────────────────────────────────────────────────────────────────


class Scan:
    """One look at a directory: what of it is as the tree and the cache know it, and what has to be read."""

    def __init__(
        self, folder: Folder, known: Tree, cache: StatCache, limits: FileLimits, choice: Choice | None
    ) -> None:
        self._folder = folder
        self._known = known
        self._cache = cache
        self._limits = limits
        self._choice = choice
        self._bytes = 0
        self.began_ns = now_ns()
        self.tree: Tree = {}
        #: How each file looked.
        self.seen: dict[str, Signature] = {}
        self.changed: list[str] = []
        self.left_out: dict[str, str] = {}
        #: Folders that were something else when they were to be entered.
        self.swapped: list[str] = []

    def run(self) -> None:
        cache, choice = self._cache, self._choice
        cache.open(os.fstat(self._folder.fd), b"" if choice is None else choice.digest)
        self._walk(self._folder.fd, "", 0)

    def _walk(self, fd: int, prefix: str, depth: int) -> None:
        """Look at one folder, then at those in it. Long, and without calls where that can be: it runs for
        every file of a working folder at every commit."""
        choice, tree, seen, known = self._choice, self.tree, self.seen, self._known
        noted_files, room, size = self._cache.files, self._limits.files_max, 0
        enters = None if choice is None else choice.enters
        if choice is not None:
            choice.enter(prefix, fd)
        folders: list[tuple[str, str]] = []
        with os.scandir(fd) as entries:
            for entry in entries:
                name = entry.name
                if name == RESTORING and not prefix:
                    continue
                text = prefix + (name if name.isascii() and "\\" not in name else name_text(name))
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    # Gone meanwhile.
                    continue
                mode = found.st_mode
                kind = mode & 0o170000
                if enters is not None and not enters(text, name, kind == stat.S_IFDIR):
                    continue
                if kind == stat.S_IFREG:
                    look = found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, mode
                    noted = noted_files.get(text)
                    if noted is not None and noted[0] == look and known.get(text) == noted[1]:
                        tree[text] = noted[1]
                        seen[text] = look
                        size += look[2]
                    elif self._is_due(text, look):
                        self.changed.append(text)
                        tree[text] = b""
                        size += look[2]
                elif kind == stat.S_IFDIR:
                    tree[text] = mode & MODE_BITS
                    folders.append((text, name))
                else:
                    self._other(text, name, fd, mode)
                if len(tree) > room:
                    raise self._too_much(text)
        self._bytes += size
        if self._bytes > self._limits.tree_bytes_max:
            raise self._too_much(text)
        for text, name in folders:
            try:
                check_size(text, len(text), depth + 1)
                inner = self._folder.enter(fd, name)
            except (OSError, LimitError) as error:
                self._not_entered(text, error)
                continue
            if inner is not None:
                try:
                    self._walk(inner, f"{text}/", depth + 1)
                finally:
                    os.close(inner)

    def _not_entered(self, text: str, error: OSError | LimitError) -> None:
        del self.tree[text]
        if isinstance(error, NotADirectoryError):
            self.swapped.append(text)
        elif self._choice is None:
            raise error if isinstance(error, LimitError) else unreadable(text, error, "looked at") from None
        else:
            self.left_out[text] = shown(error)

    def _is_due(self, text: str, look: Signature) -> bool:
        """Whether a file has to be read that isn't as the cache knows it."""
        out = self._cache.left_out.get(text)
        if out is not None and out[0] == look:
            self.seen[text] = look
            self.left_out[text] = out[1]
            return False
        if look[2] > self._limits.file_bytes_max:
            why = f"{look[2]:,} bytes, more than file_bytes_max ({self._limits.file_bytes_max:,})"
            if self._choice is None:
                raise LimitError(f"{text_name(text)!r} has {why}", path=text)
            self.left_out[text] = f"it has {why}"
            return False
        return True

    def _other(self, text: str, name: str, fd: int, mode: int) -> None:
        """What is neither a file nor a folder."""
        if stat.S_ISLNK(mode):
            with suppress(FileNotFoundError):
                self.tree[text] = {LINK: os.readlink(os.fsencode(name), dir_fd=fd)}
        elif self._choice is None:
            raise refused(text, mode)
        else:
            self.left_out[text] = kind_in_words(mode)

    def _too_much(self, text: str) -> LimitError:
        return LimitError(
            f"with {text_name(text)!r} there are more than {self._limits.files_max:,} files or "
            f"{self._limits.tree_bytes_max:,} bytes",
            path=text,
        )


class _Saving:
    """One directory on its way into a tree."""

    def __init__(self, files: Files, folder: Folder, cache: StatCache, choice: Choice | None) -> None:
        self._files = files
        self._folder = folder
        self._cache = cache
        self._choice = choice
        self.known = dict(files.tree)
        self.scan: Scan
        self.unsettled: list[str] = []

    def _look(self) -> Scan:
        """Look at the directory, and again if a folder became something else meanwhile."""
        for _ in range(_TRIES):
            scan = Scan(self._folder, self.known, self._cache, self._files.limits, self._choice)
            scan.run()
            if not scan.swapped:
                break
        return scan

    def run(self) -> Tree:
        """The tree that the directory is; its contents are stored, or about to be."""
        scan = self.scan = self._look()
        for text in scan.swapped:
            self._keep_known(text)
        for text in scan.changed:
            entry = self._read(text)
            if entry is None:
                scan.tree.pop(text, None)
            else:
                scan.tree[text] = entry
            if self._files.pending_bytes > _FLUSH_BYTES:
                self._files.save(metadata={"files": "contents of a tree to come"})
        return scan.tree

    def _keep_known(self, folder: str) -> None:
        """A folder that is swapped each time it is looked at stays in the tree as it was, and is named."""
        inside = f"{folder}/"
        self.scan.tree.update(
            (text, entry) for text, entry in self.known.items() if text == folder or text.startswith(inside)
        )
        self.unsettled.append(text_name(folder))

    def _read(self, text: str) -> Entry | None:
        """The entry of a file that has to be read; ``None`` if it doesn't belong to the tree."""
        known = self.known.get(text)
        before = FileEntry.unpack(known, text) if type(known) is bytes else None
        try:
            for _ in range(_TRIES):
                with self._folder.open_file(text) as fd:
                    found = os.fstat(fd)
                    made = self._stored(text, fd, found, before)
                    seen = signature(os.fstat(fd))
                if seen == signature(found):
                    self.scan.seen[text] = seen
                    return made
        except FileNotFoundError:
            return None
        except (OSError, InvalidValueError) as error:
            # By now it may be a pipe, or larger than a limit.
            if self._choice is None:
                raise unreadable(text, error) if isinstance(error, OSError) else error from None
            self.scan.left_out[text] = shown(error)
            return None
        self.unsettled.append(text_name(text))
        self.scan.seen.pop(text, None)
        self.scan.left_out.pop(text, None)
        return known

    def _stored(self, text: str, fd: int, found: os.stat_result, before: FileEntry | None) -> Entry | None:
        mode = found.st_mode & MODE_BITS

        def read(count: int) -> bytes:
            return os.read(fd, count)

        if found.st_size > PIECE_BYTES_MAX:
            return self._files.store_content(text, read, mode, before).pack()
        # Read as a whole before it is stored: what others are writing is looked at again first.
        data = b"".join(iter(lambda: read(PIECE_BYTES_MAX), b""))
        if signature(os.fstat(fd)) != signature(found):
            return None
        why = None if self._choice is None else self._choice.objection(text, data)
        if why is not None:
            self.scan.left_out[text] = why
            return None
        if before is not None and self._is_same(before, data):
            return FileEntry(mode, before.size, before.content, before.how).pack()
        # A memory of one piece: handed over once, then nothing.
        left = [data]
        return self._files.store_content(text, lambda _: left.pop() if left else b"", mode, before).pack()

    def _is_same(self, before: FileEntry, data: bytes) -> bool:
        """Whether a content is the one that is there already."""
        if before.size != len(data):
            return False
        if before.how != SEALED:
            return before.content == (content_id(data) if data else b"")
        # Written again it would be sealed anew.
        with suppress(ErasedError):
            return self._files.load({"": before})[""] == data
        return False

    def note(self, gone: Iterable[str]) -> None:
        """Remember how the files looked that needn't be read again."""
        scan, cache = self.scan, self._cache
        for text in gone:
            cache.drop(text)
        for text in scan.changed:
            seen, entry = scan.seen.get(text), scan.tree.get(text)
            cache.drop(text)
            if seen is not None and is_settled(seen, scan.began_ns):
                if type(entry) is bytes:
                    cache.note(text, seen, entry)
                elif text in scan.left_out:
                    cache.note_left_out(text, seen, scan.left_out[text])
        cache.save()


def save_directory(
    files: Files,
    path: AnyPath,
    *,
    label: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    cache: StatCache | None = None,
    choice: Choice | None = None,
    root: Identity | None = None,
    change_metadata: Mapping[str, Any] | None = None,
) -> Saved:
    """Make the tree of ``files`` what a directory holds, in one version: see :meth:`Files.save_directory`.

    ``change_metadata`` is added to ``metadata`` only if files changed: it alone makes no version.

    With a ``choice`` what isn't chosen, can't be read, isn't a file or exceeds a limit is left out and named.
    With its identity as ``root`` no other directory is read.
    """
    if files.thread.dirty:
        raise InvalidStateError(
            "saving a directory needs files without unsaved changes: save() or discard() them"
        )
    try:
        with Folder(path, root) as folder:
            saving = _Saving(files, folder, cache if cache is not None else StatCache(), choice)
            tree = saving.run()
        known = saving.known
        changed = [text for text, entry in tree.items() if known.get(text) != entry]
        gone = [text for text in known if text not in tree]
        added = sum(text not in known for text in changed)
        for text in changed:
            files.set_entry(text, tree[text])
        for text in gone:
            files.set_entry(text, None)
        if change_metadata and (changed or gone):
            metadata = {**(metadata or {}), **change_metadata}
        snapshot = files.save(label, metadata)
    except BaseException:
        # The directory says all there is to say: what was about to be saved is read again.
        with suppress(EverthreadError):
            files.discard()
        raise
    saving.note(gone)
    return Saved(
        snapshot=snapshot,
        added=added,
        changed=len(changed) - added,
        removed=len(gone),
        left_out={text_name(text): why for text, why in sorted(saving.scan.left_out.items())},
        unsettled=tuple(saving.unsettled),
    )


def holds_content(fd: int, file: FileEntry, view: FilesView) -> bool:
    """Whether an open file holds a content."""

    def read(count: int) -> bytes:
        return os.read(fd, count)

    if file.how == SEALED:
        try:
            return b"".join(view.pieces("", file)) == b"".join(iter(lambda: read(PIECE_BYTES_MAX), b""))
        except ErasedError:
            return False
    pieces = list(cut(read))
    if not file.content or len(pieces) < 2:
        return file.content == (content_id(pieces[0]) if pieces else b"")
    return file.content == parts_id([content_id(piece) for piece in pieces])


# ── restoring ───────────────────────────────────────────────────────────────────────────────────────────


class Writer:
    """Puts what a tree holds into a folder, and notes how it looks there."""

    def __init__(self, view: FilesView, folder: Folder, *, sync: bool = False) -> None:
        self._view = view
        self._folder = folder
        self._sync = sync
        self.erased: list[str] = []
        self.seen: dict[str, Signature] = {}

    def files(self, texts: Iterable[str], place: Callable[[str, FileEntry, Iterator[bytes]], None]) -> int:
        """Hand the content of each of these files to ``place``; how many there were."""
        batch: dict[str, FileEntry] = {}
        size = count = 0
        for text in texts:
            entry = self._view.tree[text]
            assert type(entry) is bytes
            file = FileEntry.unpack(entry, text)
            count += 1
            if file.size > PIECE_BYTES_MAX:
                self._place(text, file, self._view.pieces(text, file), place)
                continue
            batch[text] = file
            size += file.size
            if size > _BATCH_BYTES:
                self._place_batch(batch, place)
                batch, size = {}, 0
        self._place_batch(batch, place)
        return count

    def _place_batch(
        self, batch: dict[str, FileEntry], place: Callable[[str, FileEntry, Iterator[bytes]], None]
    ) -> None:
        clear = {text: file for text, file in batch.items() if file.how != SEALED}
        for text, data in self._view.load(clear).items():
            place(text, batch[text], iter([data]))
        for text, file in batch.items():
            if file.how == SEALED:
                self._place(text, file, self._view.pieces(text, file), place)

    def _place(
        self,
        text: str,
        file: FileEntry,
        pieces: Iterator[bytes],
        place: Callable[[str, FileEntry, Iterator[bytes]], None],
    ) -> None:
        if file.how == SEALED:
            try:
                # Looked at before anything of it is written.
                pieces = iter(list(pieces))
            except ErasedError:
                self.erased.append(text_name(text))
                return
        place(text, file, pieces)

    def write(self, text: str, file: FileEntry, pieces: Iterator[bytes]) -> None:
        self._folder.write_file(text, pieces, file.mode, sync=self._sync)

    def everything(self) -> int:
        """All of the tree, into an empty folder; how many files, links and folders."""
        check_tree(self._view.tree)
        tree = with_folders(self._view.tree)
        folders = [text for text, entry in tree.items() if type(entry) is int]
        for text in folders:
            self._folder.make_folder(text)
        self.files((text for text, entry in tree.items() if type(entry) is bytes), self.write)
        for text, entry in tree.items():
            if type(entry) is dict:
                self._folder.make_link(text, link_target(entry, text))
        # The innermost first: who may not enter a folder can't change what is in it.
        for text in reversed(folders):
            mode = tree[text]
            assert type(mode) is int
            self._folder.set_folder_mode(text, mode)
        return len(tree)


def restore_directory(view: FilesView, path: AnyPath) -> Restored:
    """Make a directory what a tree is: see :meth:`Files.restore_directory`."""
    target = os.path.abspath(os.fsdecode(path))
    _check_free(target)
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        parent = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageWriteError(f"the directory {target} can't be made: {shown(error)}") from None
    try:
        return restore_within(view, target, parent)
    finally:
        os.close(parent)


def restore_within(view: FilesView, target: str, parent: int) -> Restored:
    """Make the directory ``target``, in the open folder ``parent``, what a tree is."""
    name, made = os.path.basename(target), f"{_UNFINISHED}{os.urandom(6).hex()}"
    try:
        os.mkdir(made, 0o700, dir_fd=parent)
        with Folder(made, parent=parent) as folder:
            writer = Writer(view, folder)
            written = writer.everything()
            os.fchmod(folder.fd, FOLDER_MODE)
        os.rename(made, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException as error:
        with suppress(OSError):
            remove_tree(made, parent)
        if isinstance(error, OSError):
            raise StorageWriteError(f"{target} can't be restored: {shown(error)}") from error
        raise
    return Restored(version=view.version, written=written - len(writer.erased), erased=tuple(writer.erased))


def _check_free(target: str) -> None:
    try:
        with os.scandir(target) as entries:
            if next(entries, None) is None:
                return
    except FileNotFoundError:
        return
    except NotADirectoryError:
        if not os.path.lexists(target):
            raise InvalidValueError(
                f"{target} can't be made: there is a file in the place of a folder above it", path="path"
            ) from None
    except OSError as error:
        raise StorageWriteError(f"the directory {target} can't be looked into: {shown(error)}") from None
    raise InvalidValueError(
        f"{target} is there already, and isn't an empty folder; name another one", path="path"
    )
