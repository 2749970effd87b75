"""Where things are in the folder of a store, and how names of the caller become names of files.

    everthread.json          says that this is a store, its format, and which folder holds the content
    lock                     a writer holds a lock on it
    search.index             words, for searching; may be deleted at any time
    data/                    the content; a restored backup begins another folder
        lines.jsonl          every thread that there is or was
        threads/NAME-UID/    one incarnation of a thread
        sealed/              personal values, encrypted, a file each
        cells/, events/      small registers, streams of events

A caller's name never is a path: a file is called after a few harmless characters of it and a hash.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256

import msgspec

from everthread.errors import NotAStoreError, SchemaVersionError, StateCorruptedError, StoreUnavailableError
from everthread.stores.files.disk import Disk, read_file

FORMAT = 1
FORMAT_FILE = "everthread.json"
LOCK_FILE = "lock"
CATALOG = "lines.jsonl"
CONTENT = "data"
#: Derived, ignored by git, no part of a backup.
TEXT_INDEX = "search.index"

_WHAT = "everthread file store"
#: The text of a lock file, which shows that an unfinished folder is ours.
LOCK_TEXT = b"Writers of this Everthread store take turns by a lock on this file.\n"
_CONTENT_NAME = re.compile(r"data(-[1-9][0-9]{0,8})?")
_FOLDER_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_HARMLESS_MAX = 40

_GITIGNORE = "lock\n.new-*\n*.index\n*.index-*\n*.packs\n"
_GITATTRIBUTES = """\
# Records are checked byte by byte: no conversions, no merges.
* -text -merge
"""


class Format(msgspec.Struct, kw_only=True):
    """What the file at the top of a store says."""

    everthread: str
    format: int
    content: str


def harmless(name: str) -> str:
    """A few characters of a name, to recognise it by: lower case letters, digits, hyphens."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "-".join(words)[:_HARMLESS_MAX].strip("-") or "x"


def thread_folder(name: str, uid: bytes) -> str:
    """The name of the folder of a line."""
    return f"{harmless(name)}-{uid.hex()}"


def hashed_name(space: str, name: str) -> str:
    """The name of the file of a cell or stream, without its ending."""
    digest = sha256(space.encode("utf-8", "surrogatepass") + b"\0" + name.encode("utf-8", "surrogatepass"))
    return f"{harmless(name)}-{digest.hexdigest()[:32]}"


def space_folder(space: str) -> str:
    """The name of the folder of a namespace."""
    return f"{harmless(space)}-{sha256(space.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def check_folder_name(name: object) -> str:
    """A name of a folder as a store records it: never one that leads elsewhere."""
    if isinstance(name, str) and len(name) <= 100 and _FOLDER_NAME.fullmatch(name):
        return name
    raise StateCorruptedError(f"{name!r} isn't the name of a thread's folder")


def is_content_name(name: str) -> bool:
    return _CONTENT_NAME.fullmatch(name) is not None


def next_content(name: str) -> str:
    """The folder for the content that replaces the one in ``name``."""
    number = int(name.partition("-")[2] or 1)
    return f"{CONTENT}-{number + 1}"


# ── the file at the top ──────────────────────────────────────────────────────────────────────────


def read_format(root: str) -> Format:
    """What the store at ``root`` says about itself.

    Raises :class:`NotAStoreError` if it isn't one, :class:`SchemaVersionError` if a newer Everthread made it.
    """
    path = os.path.join(root, FORMAT_FILE)
    try:
        found = msgspec.json.decode(read_file(path), type=Format)
    except FileNotFoundError:
        raise NotAStoreError(f"{root} isn't an Everthread store; it was left as it is") from None
    except IsADirectoryError:
        raise NotAStoreError(f"{path} is a folder of something else; it was left as it is") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotAStoreError(f"{path} isn't that of an Everthread store; it was left as it is") from error
    if found.everthread != _WHAT:
        raise NotAStoreError(f"{path} isn't that of an Everthread file store; it was left as it is")
    if found.format > FORMAT:
        raise SchemaVersionError(
            f"{root} was written by a newer Everthread (format {found.format}, this one knows {FORMAT}); "
            "upgrade Everthread. Nothing was touched",
            found=found.format,
            supported=FORMAT,
        )
    if found.format < 1 or not _CONTENT_NAME.fullmatch(found.content):
        raise StateCorruptedError(f"{path} makes no sense: {found}", where=path)
    return found


def write_format(root: str, content: str, disk: Disk) -> None:
    """Name the folder that holds the content. This one rename makes a restored backup the store."""
    text = msgspec.json.format(msgspec.json.encode(Format(everthread=_WHAT, format=FORMAT, content=content)))
    path = os.path.join(root, FORMAT_FILE)
    disk.replace(path, text + b"\n")


def prepare_root(root: str, disk: Disk) -> bool:
    """Make sure that the folder is there and ours, or empty; whether it is a store already.

    What belongs to somebody else is left as it is.
    """
    if not os.path.isdir(root):
        # Look again: another process may be making it.
        if os.path.lexists(root) and not os.path.isdir(root):
            raise StoreUnavailableError(f"{root} is a file; a file store is a folder: name another place")
        parent = os.path.dirname(root)
        if not os.path.isdir(parent):
            raise StoreUnavailableError(
                f"the folder {parent} doesn't exist; create it, or choose another place"
            )
        disk.make_folder(root)
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise StoreUnavailableError(f"{root} can't be read and written by this user")
    if os.path.lexists(os.path.join(root, FORMAT_FILE)):
        read_format(root)
        return True
    # What begins with a dot, such as .git, may be there.
    inside = [name for name in os.listdir(root) if not name.startswith(".")]
    if inside and not _unfinished(root, inside):
        raise NotAStoreError(f"{root} is a folder with other things in it; it was left as it is")
    return False


def _unfinished(root: str, inside: list[str]) -> bool:
    """Whether making a store here was interrupted before it held anything."""
    if LOCK_FILE not in inside or os.path.exists(os.path.join(root, CONTENT, CATALOG)):
        return False
    # An early interrupt may leave only a part of the text.
    return LOCK_TEXT.startswith(read_file(os.path.join(root, LOCK_FILE)).rstrip(b"\0"))


def set_up(root: str, disk: Disk) -> None:
    """Make the folder a store. The caller holds the lock, whose file shows that the folder is ours."""
    disk.sync_folder(root)
    disk.make_folder(os.path.join(root, CONTENT, "threads"))
    for name, text in ((".gitignore", _GITIGNORE), (".gitattributes", _GITATTRIBUTES)):
        path = os.path.join(root, name)
        if not os.path.lexists(path):
            disk.write_new(path, text.encode())
    write_format(root, CONTENT, disk)
