"""Everything that a store holds about a person, as plain data for JSON."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everthread.arguments import format_path
from everthread.codec.seal import read_reference
from everthread.codec.types import Code
from everthread.codec.values import decode
from everthread.errors import EverthreadError
from everthread.history.redaction import Needle, Path
from everthread.redaction.scanning import Scanner
from everthread.values import Erased, Personal, Tagged

if TYPE_CHECKING:
    from everthread.threads.reports import Progress
    from everthread.threads.sync.core import Core

#: What threads with user data are called in places.
_USERS = "users"


class _Keys(Needle):
    """Looks for what is sealed under some keys, as other needles look for a text."""

    def __init__(self, key_ids: Sequence[bytes]) -> None:
        super().__init__("\0")
        self._key_ids = frozenset(key_ids)

    def within(self, data: bytes) -> bool:
        return any(key_id in data for key_id in self._key_ids)

    def sealed(self, node: Any, path: Path = ()) -> Iterator[tuple[Path, Tagged]]:
        if type(node) is dict:
            for key, value in node.items():
                yield from self.sealed(value, (*path, key))
        elif type(node) is list:
            for index, value in enumerate(node):
                yield from self.sealed(value, (*path, index))
        elif type(node) is Tagged and node.code == Code.SEALED:
            if not self._key_ids.isdisjoint(read_reference(node).key_ids):
                yield path, node
        elif type(node) is Tagged and self.within(node.data):
            yield from self.sealed(decode(node.data), path)


class _Found(NamedTuple):
    """A value: what is told of its place, what stands there, and of which user value it is a version."""

    place: dict[str, Any]
    tagged: Tagged
    version_of: tuple[str, Any] | None


class Telling(Scanner):
    """Finds the values of a person wherever they stand."""

    def __init__(self, core: Core, keys: _Keys, progress: Progress | None = None) -> None:
        super().__init__(core, keys, progress)
        self._keys = keys
        #: Of each thread the oldest ones first.
        self.found: list[_Found] = []

    def _look(self, what: Any, node: Any, at: Path | None, root: str, **where: Any) -> Any:
        for path, tagged in self._keys.sealed(node):
            place = {
                name: each for name, each in where.items() if each not in ("", None) and name != "redactable"
            }
            version_of = None
            if where.get("beside") == _USERS and what in ("document", "state"):
                # The key of the document under which it stands.
                version_of = where["thread"], (*(at or ()), *path)[0]
            self.found.append(
                _Found({"what": what, **place, "path": format_path(path, root)}, tagged, version_of)
            )
        return ()


def told(
    core: Core, key_ids: Sequence[bytes], over: frozenset[bytes], progress: Progress | None
) -> list[dict[str, Any]]:
    """Every place where something of these keys stands, with its value; nothing that needs a key of ``over``,
    whose time is over."""
    telling = Telling(core, _Keys(key_ids), progress)
    for _ in telling.run():
        pass
    return _told(core, telling.found, over)


def _told(core: Core, found: list[_Found], over: frozenset[bytes]) -> list[dict[str, Any]]:
    told, ended = [], set[tuple[str, Any]]()
    # The newest first: a user value that ended by itself was under the key of its person alone before it was
    # given a time, and its end holds for those versions, too.
    for place, tagged, version_of in reversed(found):
        needed = read_reference(tagged).key_ids
        if version_of is not None and core.vault.is_erased(needed):
            ended.add(version_of)
        if version_of not in ended and over.isdisjoint(needed):
            told.append(_opened(core, place, tagged))
    return told[::-1]


def _opened(core: Core, place: dict[str, Any], tagged: Tagged) -> dict[str, Any]:
    try:
        value = core.vault.open(tagged, {})
        return {**place, "value": jsonable(value.value) if isinstance(value, Personal) else None}
    except EverthreadError as error:
        return {**place, "unreadable": type(error).__name__, "value": None}


def jsonable(value: Any) -> Any:
    """A value with nothing in it but what JSON has."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Personal):
        return jsonable(value.value)
    if isinstance(value, Erased):
        return None
    if isinstance(value, Mapping):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Sequence | set | frozenset):
        return [jsonable(each) for each in value]
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return str(value)
