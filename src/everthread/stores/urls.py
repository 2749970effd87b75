"""The URLs of stores: what they name, what they may say, and which one counts if none is given."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from everthread.arguments import check_keyring, check_path
from everthread.errors import (
    InvalidValueError,
    StoreUnavailableError,
    UnsupportedError,
)

URL_VARIABLE = "EVERTHREAD_URL"
KEYRING_VARIABLE = "EVERTHREAD_KEYRING"
NAMESPACE_VARIABLE = "EVERTHREAD_NAMESPACE"
FOLDER = ".everthread"
FILE = "everthread.db"

SCHEMES = (
    "memory:, sqlite:///relative.db, sqlite:////absolute/path.db, file:///absolute/folder, "
    "postgresql://host/database, valkey://host/0, redis://host/0"
)


class Network(NamedTuple):
    """A store behind a network. Its package below ``everthread.stores``, which is also the name of its extra,
    has ``aio/store.py``, written by hand, and the generated ``sync/store.py``, each with
    ``connect(url, durability, create)``; ``driver`` is the module that has to be installed for these."""

    package: str
    driver: str


class Existing(str):
    """The URL of a store that must be there. Opening it makes none on a server: :class:`NotFoundError` then.

    A file or folder is looked at before, by whoever needs it: that takes no round trip."""

    __slots__ = ()


#: By scheme.
NETWORK: dict[str, Network] = {
    "postgres": Network("postgres", "psycopg"),
    "postgresql": Network("postgres", "psycopg"),
    "valkey": Network("valkey", "redis"),
    "valkeys": Network("valkey", "redis"),
    "redis": Network("valkey", "redis"),
    "rediss": Network("valkey", "redis"),
}


def default_url(*, create: bool = True) -> str:
    """``$EVERTHREAD_URL``, else the nearest ``.everthread`` folder upwards, else that at home.

    That at home is made, for its owner alone, if it isn't there and may be (``create``). Raises
    :class:`StoreUnavailableError`, saying why and what to do, if there is no place, or one that isn't safe.
    """
    given = os.environ.get(URL_VARIABLE)
    if given:
        return store_url(given)
    try:
        here = os.getcwd()
    except OSError as error:
        raise _no_place(f"the current folder is gone ({error.strerror})") from error
    while True:
        folder = os.path.join(here, FOLDER)
        if os.path.isdir(folder):
            return _place(folder)
        above = os.path.dirname(here)
        if above == here:
            break
        here = above
    home = os.path.expanduser("~")
    if not os.path.isabs(home) or not os.path.isdir(home):
        raise _no_place(f"there is no home folder {home!r}")
    folder = os.path.join(home, FOLDER)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise _no_place(f"{folder} is in the way: it isn't a folder")
    try:
        if create:
            os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise _no_place(f"can't create {folder} ({error.strerror})") from error
    return _place(folder)


def chosen_keyring(given: Any) -> Any:
    """The keyring that was given, else ``$EVERTHREAD_KEYRING``, else ``None``: the one at home.

    Raises :class:`UnsupportedError` if the variable names no place where a keyring can be.
    """
    named = os.environ.get(KEYRING_VARIABLE)
    if given is not None or not named:
        return given
    try:
        check_keyring(named)
    except UnsupportedError as error:
        raise UnsupportedError(f"${KEYRING_VARIABLE}: {error}") from None
    return named


def chosen_namespace(given: str | None) -> str:
    """The namespace that was given, ``""`` included, else ``$EVERTHREAD_NAMESPACE``, else ``""``."""
    return os.environ.get(NAMESPACE_VARIABLE, "") if given is None else given


def _place(folder: str) -> str:
    """The store in a folder that was found rather than named: nobody else may have put it there."""
    try:
        found = os.stat(folder)
    except FileNotFoundError:
        # Not to be created: then there is nothing to be careful about.
        return sqlite_url(os.path.join(folder, FILE))
    except OSError as error:
        raise _no_place(f"can't look at {folder} ({error.strerror})") from error
    me = os.getuid()
    if found.st_uid not in (me, 0) and me != 0:
        raise _no_place(f"{folder} belongs to another user")
    if found.st_mode & 0o002:
        raise _no_place(f"everybody can write to {folder}, and so to what agents rely on")
    return sqlite_url(os.path.join(folder, FILE))


def _no_place(why: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"no place for a store: {why}. Set {URL_VARIABLE}, or pass a URL such as sqlite:///agent.db"
    )


#: What the names of SQLite files end with.
_ENDINGS = (".db", ".sqlite", ".sqlite3")
_SQLITE = b"SQLite format 3\0"


def store_url(given: str | os.PathLike[str]) -> str:
    """The URL of the store that a URL or a path names.

    A path is a SQLite file if it ends in .db, .sqlite or .sqlite3, or is one already, and a file store if it
    is the folder of one. Raises :class:`UnsupportedError`, saying what to write, for any other path.
    """
    if isinstance(given, str):
        scheme, colon, _ = given.partition(":")
        if "\0" in given or "://" in given or (colon and scheme in ("memory", "sqlite", "file", *NETWORK)):
            return given
        if not given:
            raise UnsupportedError(f"'' isn't a store URL; use one of {SCHEMES}")
    path = check_path(given, "url")
    if os.path.isfile(os.path.join(path, "everthread.json")):
        return f"file://{quoted(os.path.abspath(path))}"
    is_folder = os.path.isdir(path)
    if not is_folder and (path.endswith(_ENDINGS) or _is_sqlite(path)):
        return sqlite_url(path)
    whole = quoted(os.path.abspath(path))
    if is_folder:
        hint = f"it is a folder without a store; file://{whole} makes a file store in it"
    else:
        hint = f"write sqlite:///{quoted(path)} for a SQLite file, or file://{whole} for a folder"
    raise UnsupportedError(f"{path!r} isn't known to be a store: {hint}; or use one of {SCHEMES}")


def _is_sqlite(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


def sqlite_url(path: str) -> str:
    """The URL of a file, whatever characters its path has."""
    return f"sqlite:///{quoted(path)}"


def kind_of(url: str) -> str:
    """The kind of store behind a URL, however it is spelled: ``memory``, ``sqlite``, ``file``, or the package
    of a server."""
    scheme = url.partition(":")[0]
    return NETWORK[scheme].package if scheme in NETWORK else scheme


def over_network(url: str) -> bool:
    """Return True if the driver of this store is async by nature: ``connect_async`` then opens it."""
    return isinstance(url, str) and url.partition(":")[0] in NETWORK


#: Options in the URLs of files and folders; numbers with what they are without.
_OPTIONS: dict[str, dict[str, int | None]] = {
    "sqlite": {"busy_timeout_ms": 10_000, "vfs": None, "wal_autocheckpoint": 1000},
    "file": {"busy_timeout_ms": 10_000},
}


def file_options(url: str) -> dict[str, Any]:
    """The options of the URL of a SQLite file or of a folder, all that there are.

    Raises :class:`InvalidValueError` if it has others, or values that make no sense.
    """
    scheme, _, rest = url.partition(":")
    known, given = _OPTIONS[scheme], options_of(rest.partition("?")[2])
    found: dict[str, Any] = {**known, **given}
    try:
        for name, default in known.items():
            if default is not None:
                found[name] = int(found[name])
                if found[name] < 0:
                    raise ValueError(url)
    except ValueError:
        raise InvalidValueError(f"the numbers in {url!r} must be whole and not negative") from None
    if unknown := [name for name in given if name not in known]:
        verb = "known is" if len(known) == 1 else "known are"
        raise InvalidValueError(
            f"unknown options in {url!r}: {', '.join(unknown)}; {verb} {', '.join(known)} (a question mark "
            "in a name is written %3F)"
        )
    return found


# Paths in URLs. urllib is imported only for the few paths that need it: it takes longer to load than a
# store takes to open.

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/_.-~")


def quoted(path: str) -> str:
    """A path as it is written in a URL, whatever characters it has."""
    if _PLAIN.issuperset(path):
        return path
    from urllib.parse import quote

    # Names of files are bytes: what isn't UTF-8 in them is kept as it is.
    return quote(path, errors="surrogateescape")


def unquoted(text: str) -> str:
    """A path as it was before it was written into a URL."""
    if "%" not in text:
        return text
    from urllib.parse import unquote

    return unquote(text, errors="surrogateescape")


def options_of(query: str) -> dict[str, str]:
    """The options after the question mark of a URL."""
    if not query:
        return {}
    from urllib.parse import parse_qsl

    return dict(parse_qsl(query, keep_blank_values=True))


def file_identity(path: str) -> str:
    """What tells a file or folder from all others, whatever links lead to it."""
    found = os.stat(path)
    return f"file {found.st_dev}:{found.st_ino}"


def real_path(path: str) -> str:
    """The file that a symbolic link leads to, by a path; other paths as they are."""
    return os.path.realpath(path) if os.path.islink(path) else path
