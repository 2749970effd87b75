"""Redactions that were cut short: what they need to go on is kept until they are done, and then purged."""

from __future__ import annotations

import warnings
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from everthread.errors import ConflictError, EverthreadError, StateCorruptedError
from everthread.history.redaction import Needle, key_replacement
from everthread.process import here
from everthread.threads.sync.journals import beside
from everthread.threads.sync.unfinished import REDACTION, Work, begin, cut_short, end, work

if TYPE_CHECKING:
    from everthread.redaction.places import RedactionReport
    from everthread.threads.reports import Progress
    from everthread.threads.sync.core import Core

_NAME = "redaction/"
_PAGE = 100
_COPIES = "backups, exports and other copies made before, and what other processes have read"


class Intention(msgspec.Struct, frozen=True):
    """A redaction as it was asked for; ``instead_of`` those of the same text that were cut short.

    ``in_keys`` takes the place of the text in keys (empty: as everywhere). Whoever goes on, and whoever
    redacts the same text at the same time, takes the same: a key must not become two.
    """

    id: str
    text: str
    replacement: str
    reason: str
    instead_of: tuple[str, ...] = ()
    in_keys: str = ""
    #: The text in bytes if it has lone surrogates, which nothing encodes as text.
    data: bytes = b""

    @property
    def name(self) -> str:
        return _NAME + self.id

    def pack(self) -> bytes:
        """As bytes in which neither a scan nor a person who looks at them finds the text, behind a checksum:
        with a wrong bit in them another text would be taken out of all of history."""
        raw, told = self.text.encode("utf-8", "surrogatepass"), self
        if raw.decode("utf-8", "replace") != self.text:
            told = msgspec.structs.replace(self, text="", data=raw)
        data = msgspec.msgpack.encode(told)
        return _veiled(zlib.crc32(data).to_bytes(4, "little") + data)

    @classmethod
    def unpack(cls, data: bytes) -> Intention:
        """Raises :class:`StateCorruptedError` if it isn't what was packed."""
        whole = _veiled(data)
        if zlib.crc32(whole[4:]).to_bytes(4, "little") != whole[:4]:
            raise StateCorruptedError(
                "what was to be redacted is damaged; redact it again", where="unfinished"
            )
        try:
            told = msgspec.msgpack.decode(whole[4:], type=cls)
            text = told.data.decode("utf-8", "surrogatepass") or told.text
            return msgspec.structs.replace(told, text=text, data=b"")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StateCorruptedError(
                "what was to be redacted can't be read; redact it again", where="unfinished"
            ) from error


def _veiled(data: bytes) -> bytes:
    return bytes(byte ^ 0xA5 for byte in data)


def carry_out(core: Core, intention: Intention, progress: Progress | None, purge_s: float) -> RedactionReport:
    """Redact, with the intention written first and removed last. Killed anywhere, the next open goes on."""
    from everthread.redaction.redacting import Redactor

    needle = Needle(intention.text, intention.replacement, intention.in_keys)
    redactor = Redactor(core, needle, intention.reason, progress)
    redactor.id = intention.id
    others = [_NAME + id_ for id_ in intention.instead_of]
    begun = cut_short(core.backend, core.space, core.runtime.now_us)
    for name, told in begun:
        if name in others:
            # Whoever opens the store meanwhile doesn't go on with it.
            begin(core, name, msgspec.structs.replace(told, who=here()))
    begin(core, intention.name, work(core, REDACTION, note=intention.pack()))
    if intention.name not in [name for name, _ in begun]:
        _give_way(core, intention)
    report = redactor.run(dry_run=False)
    for id_ in intention.instead_of:
        redactor.note_rest_of(id_)
    stays = [
        f"what the redaction {id_} of this text did before it was cut short: its own replacement stays there"
        for id_ in intention.instead_of
    ]
    copies = [_COPIES] if report.values else []
    purged = purge(core, [*others, intention.name], purge_s)
    unreached = (*stays, *purged, *_in_archive(core), *copies)
    return msgspec.structs.replace(report, unreached=unreached)


def _give_way(core: Core, intention: Intention) -> None:
    """Somebody who began with the same text at the very same time knows nothing of this one, and has another
    replacement for keys. Nothing is done yet: of two that see each other both give way."""
    if any(each.in_keys != intention.in_keys for each in _of_text(core, intention.text)):
        begin(core, intention.name, work(core, REDACTION))
        raise ConflictError("somebody else has begun to redact the same text just now; run it again")


def _in_archive(core: Core) -> tuple[str, ...]:
    """What came back from a cold archive is still in its parcel there, as it was."""
    archive = getattr(core.backend, "archive", None)
    if archive is None:
        return ()
    parcels = next(iter(archive.keys()), None)
    words = "parcels in the cold archive, until cool(…, sweep_after=…) removes those that came back"
    return () if parcels is None else (words,)


def purge(core: Core, names: list[str], purge_s: float) -> tuple[str, ...]:
    """What was written before is in free pages and logs of the store until it is purged, and so are the
    intentions: the text in them goes first."""
    for name in names:
        begin(core, name, work(core, REDACTION))
    core.memos.clear()
    # Also if nothing was found: somebody may have been killed before this.
    purged = core.backend.purge(purge_s)
    for name in [] if purged.waiting else names:
        end(core, name)
    return (*purged.waiting, *purged.replaced, *purged.unreached)


def begun_before(core: Core, needle: Needle, reason: str) -> Intention:
    """The intention to redact this; the same again if it was cut short. One with another replacement takes
    the place of those that were: nothing of the text is left for them."""
    begun = cut_short(core.backend, core.space, core.runtime.now_us)
    same = [known for _, told in begun if (known := _intention(told)) is not None]
    same = [known for known in same if known.text == needle.text]
    replaced = {id_ for known in same for id_ in known.instead_of}
    for known in same:
        if known.replacement == needle.replacement and known.id not in replaced:
            others = tuple(each.id for each in same if each.id != known.id)
            return msgspec.structs.replace(known, instead_of=others)
    # Why it is done is recorded in clear: the text doesn't stay in that.
    why, others = needle.replaced(reason), tuple(known.id for known in same)
    id_, in_keys = core.runtime.random_bytes(8).hex(), _in_keys(core, needle)
    return Intention(id_, needle.text, needle.replacement, why, others, in_keys)


def _in_keys(core: Core, needle: Needle) -> str:
    """What takes the place of the text in keys: the same as for whoever has begun with it, and isn't done."""
    for known in _of_text(core, needle.text):
        return known.in_keys or known.replacement
    return key_replacement(needle.text, needle.replacement, core.runtime.random_bytes)


def _of_text(core: Core, text: str) -> list[Intention]:
    """All that is to be done with a text, whether or not somebody is at it."""
    known = [_intention(told) for _, told in _marks(core)]
    return [each for each in known if each is not None and each.text == text]


def _intention(told: Work) -> Intention | None:
    """What a mark says was to be redacted; ``None`` if that is done, or can't be read."""
    if told.what == REDACTION and told.note:
        with suppress(StateCorruptedError):
            return Intention.unpack(told.note)
    return None


def under_way(core: Core) -> set[str]:
    """The redactions that have something left to rewrite, whether or not somebody is at them, by id."""
    return {name.removeprefix(_NAME) for name, told in _marks(core) if told.note}


def _marks(core: Core) -> list[tuple[str, Work]]:
    found: list[tuple[str, Work]] = []
    space, after = beside(core, "unfinished").space, None
    while page := core.backend.cells(space, _NAME, after, _PAGE):
        for name, cell in page:
            with suppress(msgspec.MsgspecError):
                found.append((name, msgspec.msgpack.decode(cell.value, type=Work)))
        after = page[-1][0]
    return found


def go_on(core: Core) -> None:
    """When a store is opened: finish redactions, tell of imports. Whatever is wrong, the store is open."""
    begun = cut_short(core.backend, core.space, core.runtime.now_us)
    known = [each for _, told in begun if (each := _intention(told)) is not None]
    replaced = {_NAME + id_ for each in known for id_ in each.instead_of}
    for name, told in begun:
        if name in replaced:
            # Ended by the one that takes its place.
            continue
        if told.what != REDACTION:
            warnings.warn(f"{core.backend.url}: {told}", stacklevel=2)
            continue
        try:
            if told.note:
                carry_out(core, Intention.unpack(told.note), None, 0.0)
            else:
                purge(core, [name], 0.0)
        except EverthreadError as error:
            core.background_error = error
