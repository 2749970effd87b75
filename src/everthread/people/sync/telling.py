# Generated from src/everthread/people/aio/telling.py by tools/twin.py: change that, then run: make twin
"""Everything that a store holds about a person, as plain data for JSON."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from everthread.codec.seal import read_reference
from everthread.codec.types import Code
from everthread.codec.values import decode
from everthread.errors import EverthreadError
from everthread.history.redaction import Needle, Path
from everthread.model.paths import format_path
from everthread.model.values import Erased, Personal, Tagged
from everthread.people.sync.phases import apart
from everthread.redacting.sync.scanning import Scanner

if TYPE_CHECKING:
    from everthread.threads.reports import Progress
    from everthread.threads.sync.core import Core


class _Keys(Needle):
    """Looks for what is sealed under some keys, as other needles look for a text."""

    def __init__(self, key_ids: Sequence[bytes], over: frozenset[bytes]) -> None:
        super().__init__("\0")
        self._key_ids = frozenset(key_ids)
        self._over = over

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
            needed = set(read_reference(node).key_ids)
            if self._key_ids & needed and not self._over & needed:
                yield path, node
        elif type(node) is Tagged and self.within(node.data):
            yield from self.sealed(decode(node.data), path)


class Telling(Scanner):
    """Finds the values of a person wherever they stand."""

    def __init__(self, core: Core, keys: _Keys, progress: Progress | None = None) -> None:
        super().__init__(core, keys, progress)
        self._keys = keys
        #: What is told of each place, and what stands there.
        self.found: list[tuple[dict[str, Any], Tagged]] = []

    def _places(self, what: Any, node: Any, root: str, **where: Any) -> Any:
        for path, tagged in self._keys.sealed(node):
            place = {
                name: each for name, each in where.items() if each not in ("", None) and name != "redactable"
            }
            self.found.append(({"what": what, **place, "path": format_path(path, root)}, tagged))
        return ()


def told(
    core: Core, key_ids: Sequence[bytes], over: frozenset[bytes], progress: Progress | None
) -> list[dict[str, Any]]:
    """Every place where something of these keys stands, with its value; nothing that needs a key of ``over``,
    whose time is over."""
    telling = Telling(core, _Keys(key_ids, over), progress)
    for _ in telling.run():
        pass
    return [apart(_opened, core, place, tagged) for place, tagged in telling.found]


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
