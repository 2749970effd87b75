"""What a call of the command line was told, and the store it then works on."""

from __future__ import annotations

import copy
import os
import re
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from everthread.cli.output import Output, typed
from everthread.errors import (
    EverthreadError,
    NotAStoreError,
    NotFoundError,
    StoreUnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    from everthread.redaction.report import Redaction
    from everthread.store import Store
    from everthread.threads.reports import Recovered


#: True whether or not there was anything to finish.
_STOPPED = (
    "stopped: an erasure or a redaction that has begun goes on when the store is next opened; nothing else "
    "was changed"
)


class Invocation:
    """The shared options of one call."""

    def __init__(self) -> None:
        self.url: str | None = None
        #: None if nobody named one: then what is about all namespaces is about all.
        self.namespace: str | None = os.environ.get("EVERTHREAD_NAMESPACE") or None
        self.cold: str | None = None
        self.keyring: str | None = None
        self.format: str | None = None
        #: What the open store has said of threads whose newest versions can't be read.
        self._damage: list[str] = []

    @property
    def output(self) -> Output:
        return Output(self.format or "text")

    @property
    def where(self) -> str:
        """The URL of the store: the one that was given, or the one that an agent would find from here."""
        from everthread.stores.urls import default_url

        return self.url if self.url is not None else default_url(create=False)

    def command(self, words: str, *names: str, options: str = "") -> str:
        """A command to type next, on the store and namespace of this call, whatever is the default elsewhere.
        ``names`` are quoted for a shell; ``words`` and ``options`` are as they are."""
        store = f"--store {typed(self.url)}" if self.url is not None else ""
        space = f"--namespace {typed(self.namespace)}" if self.namespace else ""
        quoted = " ".join(typed(name).removeprefix("-- ") for name in names)
        # Behind -- nothing is an option.
        like_option = any(name[:1] == "-" for name in names)
        parts = (
            ("everthread", words, store, space, options, "--", quoted)
            if like_option
            else ("everthread", words, quoted, store, space, options)
        )
        return " ".join(part for part in parts if part)

    @contextmanager
    def store(self, *, settle: bool = True) -> Iterator[Store]:
        """The store, for the length of a command. Never creates one.

        Whoever opens a store goes on with what others left unfinished and erases whose time is over; without
        ``settle`` that stays as it is. Raises :class:`NotFoundError` if there is none.
        """
        with self.looked_at(self.where, settle=settle) as store:
            store.core.warn = self._hear_of_damage
            try:
                yield store
            finally:
                self.tell_of_damage()

    def tell_of_damage(self, *, known: bool = False) -> None:
        """Say which threads stand on an older version than their newest, of each once; after the answer,
        which may be long, unless somebody must know before. ``known``: the answer says it itself."""
        if not known and self._damage:
            from everthread.cli.errors import with_doctor
            from everthread.cli.output import note

            for words in self._damage:
                note(with_doctor(f"damaged: {words}"))
        self._damage.clear()

    def looked_at(self, url: str, *, settle: bool = True, cold: bool = True) -> Store:
        """The store at a URL, opened, if there is one; without its archive if not ``cold``.

        Raises what :func:`missing` gives, otherwise.
        """
        from everthread.stores.urls import Existing

        why = missing(url)
        if why is not None:
            raise why
        return self._open(Existing(url), _forgiving(url), settle, cold)

    def made(self, url: str) -> Store:
        """The store at a URL, opened; it is made if it isn't there."""
        return self.written_to(url, _forgiving(url))

    def written_to(
        self, url: str, durability: str = "full", *, settle: bool = True, cold: bool = True
    ) -> Store:
        """The store at a URL, opened to put much into it; it is made if it isn't there. Without its archive
        if not ``cold``.

        Raises :class:`UnsupportedError` if it wouldn't keep that.
        """
        from everthread.errors import UnsupportedError

        if url.partition(":")[0] == "memory":
            raise UnsupportedError(
                f"{url} is gone when this command ends; name a store that stays, such as sqlite:///agent.db"
            )
        return self._open(url, durability, settle, cold)

    def settle(self, store: Store) -> None:
        """Go on with what others left unfinished, and erase whose time is over."""
        from everthread.cli.errors import goes_on

        with goes_on(lambda: _STOPPED):
            store._finish_erasures()

    def _open(self, url: str, durability: str, settle: bool = True, cold: bool = True) -> Store:
        import warnings

        from everthread import store as opening
        from everthread.cli.output import note
        from everthread.stores.urls import Existing, over_network

        with warnings.catch_warnings(record=True) as doubts, _patience(over_network(url), url):
            warnings.simplefilter("always", UserWarning)
            archive = self.cold if cold else None
            store = opening.unsettled(
                url, durability, archive, False, namespace=self.namespace or "", keyring=self.keyring
            )
            if settle:
                try:
                    self.settle(store)
                except BaseException:
                    store.close()
                    raise
        if not isinstance(url, Existing):
            from everthread.cli.errors import as_typed

            for doubt in doubts:
                note(f"careful: {as_typed(str(doubt.message))}")
        return store

    def _hear_of_damage(self, called: str, found: Recovered) -> None:
        self._damage.append(f"{called.removeprefix('the thread ')} {found}")


def _forgiving(url: str) -> str:
    # How a server keeps its data is up to its settings: no reason not to look, doctor tells.
    return "process" if url.startswith(("valkey", "redis")) else "full"


def _patience(network: bool, url: str) -> AbstractContextManager[None]:
    if not network:
        return nullcontext()
    from everthread.cli.output import told_to_wait

    return told_to_wait(url)


def missing(url: str) -> EverthreadError | None:
    """Why there is no store at this URL that could be looked at; ``None`` if there may be one.

    Looking at a store that isn't there must not make one. What can't be looked at isn't known to be missing.
    """
    from everthread.errors import InvalidValueError, NotFoundError
    from everthread.stores.urls import unquoted

    scheme, colon, rest = url.partition(":")
    location = unquoted(rest.partition("?")[0])
    if scheme == "memory" and colon:
        return NotFoundError(f"there is no store at {url}: it lives within the program that opened it")
    if scheme not in ("sqlite", "file") or not location.startswith("///") or len(location) == 3:
        # Whatever it is, opening it says so.
        return None
    if "\0" in location:
        return InvalidValueError(f"{url!r} contains NUL; no file can be called so")
    try:
        why = _missing_file(location[3:]) if scheme == "sqlite" else _missing_folder(location[2:])
    except OSError as error:
        from everthread.errors import StoreUnavailableError

        return StoreUnavailableError(
            f"can't look at {error.filename}: {error.strerror}; whether there is a store isn't known"
        )
    return _wrong_url(url, why) if isinstance(why, NotFoundError) and "?" in rest else why


def _wrong_url(url: str, why: EverthreadError) -> EverthreadError:
    """What is wrong with the options of a URL, if anything is: that is mended first, and perhaps it was the
    name that was meant. Otherwise ``why``."""
    from everthread.errors import InvalidValueError
    from everthread.stores.urls import file_options

    try:
        file_options(url)
    except InvalidValueError as error:
        return InvalidValueError(f"{error}. Besides, {why}")
    return why


def _missing_file(path: str) -> EverthreadError | None:
    from everthread.stores.urls import real_path

    path = real_path(path)
    found, log = _stat(path), _stat(path + "-wal")
    if log is not None and log.st_size:
        # Where there is a log and no file, opening it says what there is to do.
        return None
    if found is None:
        return _none_at(path)
    if found.st_size or not stat.S_ISREG(found.st_mode):
        return None
    beside = path + "-lock"
    if _stat(beside) is None:
        return _none_at(path)
    from everthread.errors import StateCorruptedError

    return StateCorruptedError(
        f"{path} is empty, though a store was opened there: {beside} is still beside it. If it held "
        "anything, start no program on it, which would begin a new store: move these files aside and put "
        f"a backup there. If it never did, remove {beside}",
        where=path,
    )


def _missing_folder(path: str) -> EverthreadError | None:
    found = _stat(path)
    if found is not None and not stat.S_ISDIR(found.st_mode):
        return None
    if _stat(os.path.join(path, "everthread.json")) is not None:
        return None
    return _none_at(path) if found is None else _in_the_way(path) or _none_at(path)


def _in_the_way(path: str) -> EverthreadError | None:
    """What keeps a folder that is there from becoming a store, as whoever opened it would be told."""
    from everthread.errors import EverthreadError
    from everthread.stores.files.disk import Disk
    from everthread.stores.files.layout import prepare_root

    try:
        # Of a folder that is there it only looks at what is in it.
        prepare_root(path, Disk(durable=False))
    except EverthreadError as error:
        return error
    return None


def _none_at(path: str) -> EverthreadError:
    from everthread.errors import NotFoundError

    folder = os.path.dirname(os.path.abspath(path))
    if _stat(folder) is None:
        return NotFoundError(f"there is no store at {path}: there is no folder {folder} either")
    return NotFoundError(f"there is no store at {path} yet; an agent makes it with its first commit")


def _stat(path: str) -> os.stat_result | None:
    """``None`` only if it isn't there. Raises :class:`OSError` if that can't be told."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


# What a file or folder that is to be restored really is, in the words of who types commands; what a backup
# leaves beside it, and what restoring one brings back.


#: What a backup is called until it is whole.
_PARTIAL = re.compile(r".+\.partial-[0-9a-f]{16}")

_URLS = {
    "SQLite": "sqlite:///new.db",
    "files": "file:///new/folder",
}


def place_of(url: str) -> str:
    """The file or folder that the URL of such a store names."""
    from everthread.stores.urls import unquoted

    scheme, _, rest = url.partition("://")
    place = unquoted(rest.partition("?")[0])
    return os.path.realpath(place[1:] if scheme == "sqlite" else place)


def look_at(url: str, path: str) -> None:
    """Raises what keeps ``path`` from being restored into the store at ``url``, as far as a look from outside
    tells: nobody is asked about replacing a store by what can't take its place. What is inside is for the
    store to judge, which changes nothing if it is damaged.
    """
    from everthread.stores.backup_file import FILES, KINDS, kind_of

    found = _stat_backup(path)
    _refuse_itself(url, path)
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        # Before it is read: a pipe would be waited for, and a device read without end.
        raise UsageError(f"{path} is neither a file nor a folder, and so no backup")
    refuse_other_kind(url, path)
    wanted = KINDS.get(url.partition(":")[0])
    if wanted is None or kind_of(path) == wanted:
        # Nothing is kept in memory: opening it says so.
        return
    if stat.S_ISDIR(found.st_mode) is not (wanted == FILES):
        given, needed = ("file", "folder") if wanted == FILES else ("folder", "file")
        raise NotAStoreError(f"{path} is a {given}; a backup of a store of this kind is a {needed}")
    raise NotAStoreError(f"{path} isn't a backup of a store: it doesn't begin like one")


def _stat_backup(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        link = ": it is a link that leads nowhere" if os.path.islink(path) else ""
        raise NotFoundError(f"there is no backup at {path}{link}") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise StoreUnavailableError(f"can't look at {path}: {why}") from error


def _is_at(url: str, path: str) -> bool:
    """Whether that is the file or folder of a store, through whichever link it is named."""
    try:
        return url.startswith(("sqlite:", "file:")) and os.path.samefile(place_of(url), path)
    except (OSError, ValueError):
        return False


def is_itself(src: str, dst: str) -> bool:
    """Whether two URLs name the same store, as far as a look from outside tells."""
    return src == dst or (dst.startswith(("sqlite:", "file:")) and _is_at(src, place_of(dst)))


def _refuse_itself(url: str, path: str) -> None:
    if _is_at(url, path):
        raise UsageError(f"{path} is the store itself, {url}: name a backup of it, such as backup makes")


def refuse_other_kind(url: str, path: str) -> None:
    """Raises :class:`UsageError` if what is at ``path`` is known to be for something else than the store at
    ``url``; what isn't recognised is for the store to judge."""
    from everthread.stores.backup_file import ARCHIVE, another_kind

    found = another_kind(url, path)
    if found is None:
        return
    if found == ARCHIVE:
        raise UsageError(
            f"{path} is an archive, not a backup: everthread import {typed(path)} --store {typed(url)} "
            "brings it in"
        )
    raise UsageError(
        f"{path} is a backup of a store of another kind ({found}), and goes back into one of that kind only: "
        f"everthread restore {typed(path)} --store {_URLS[found]}, then everthread copy brings it here"
    )


def leftovers(path: str) -> list[str]:
    """Parts of backups in the folder of ``path``: left by processes that were killed, or still being written.
    Which of them, nobody can tell from outside: so they are named, and not removed."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        found = sorted(name for name in os.listdir(folder) if _PARTIAL.fullmatch(name))
    except OSError:
        return []
    return [os.path.join(folder, name) for name in found]


def redactions_in(store: Store) -> dict[tuple[str, str], Redaction]:
    """What was redacted in each namespace of a store, by namespace and id; as far as that can be read."""
    from everthread.maintenance.redaction_record import NAME, redactions_space
    from everthread.redaction.redact import recorded

    found: dict[tuple[str, str], Redaction] = {}
    with suppress(EverthreadError):
        for line in store.core.backend.every_line():
            space = line.space.partition("\0")[0]
            if line.deleted or (line.space, line.name) != (redactions_space(space), NAME):
                continue
            core = copy.copy(store.core)
            core.space = space
            found.update({(space, each.id): each for each in recorded(core)})
    return found
