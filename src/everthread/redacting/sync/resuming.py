# Generated from src/everthread/redacting/aio/resuming.py by tools/twin.py: change that, then run: make twin
"""Redactions that were cut short: what they need to go on is kept until they are done, and then purged."""

from __future__ import annotations

import warnings
import zlib
from typing import TYPE_CHECKING

import msgspec

from everthread.errors import EverthreadError, StateCorruptedError
from everthread.history.redaction import Needle
from everthread.threads.sync.unfinished import REDACTION, begin, cut_short, end, work

if TYPE_CHECKING:
    from everthread.redacting.places import RedactionReport
    from everthread.threads.reports import Progress
    from everthread.threads.sync.core import Core

_NAME = "redaction/"


class Intention(msgspec.Struct, frozen=True):
    """A redaction as it was asked for."""

    id: str
    text: str
    replacement: str
    reason: str

    @property
    def name(self) -> str:
        return _NAME + self.id

    def pack(self) -> bytes:
        """As bytes in which neither a scan nor a person who looks at them finds the text, behind a checksum:
        with a wrong bit in them another text would be taken out of all of history."""
        data = msgspec.msgpack.encode(self)
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
            return msgspec.msgpack.decode(whole[4:], type=cls)
        except msgspec.MsgspecError as error:
            raise StateCorruptedError(
                "what was to be redacted can't be read; redact it again", where="unfinished"
            ) from error


def _veiled(data: bytes) -> bytes:
    return bytes(byte ^ 0xA5 for byte in data)


def carry_out(core: Core, intention: Intention, progress: Progress | None, purge_s: float) -> RedactionReport:
    """Redact, with the intention written first and removed last. Killed anywhere, the next open goes on."""
    from everthread.redacting.sync.redacting import Redactor

    needle = Needle(intention.text, intention.replacement)
    redactor = Redactor(core, needle, intention.reason, progress)
    redactor.id = intention.id
    begin(core, intention.name, work(core, REDACTION, note=intention.pack()))
    report = redactor.run(dry_run=False)
    unreached = (*purge(core, intention.name, purge_s), *_in_archive(core))
    return msgspec.structs.replace(report, unreached=unreached)


def _in_archive(core: Core) -> tuple[str, ...]:
    """What came back from a cold archive is still in its parcel there, as it was."""
    archive = getattr(core.backend, "archive", None)
    if archive is None:
        return ()
    parcels = next(iter(archive.keys()), None)
    words = "parcels in the cold archive, until cool(…, sweep_after=…) removes those that came back"
    return () if parcels is None else (words,)


def purge(core: Core, name: str, purge_s: float) -> tuple[str, ...]:
    """What was written before is in free pages and logs of the store until it is purged, and so is the
    intention: the text in it goes first."""
    begin(core, name, work(core, REDACTION))
    core.memos.clear()
    # Also if nothing was found: somebody may have been killed before this.
    purged = core.backend.purge(purge_s)
    if not purged.waiting:
        end(core, name)
    return (*purged.waiting, *purged.replaced, *purged.unreached)


def begun_before(core: Core, needle: Needle, reason: str) -> Intention:
    """The intention to redact this; the same again if it was cut short."""
    for _, told in cut_short(core.backend, core.space, core.runtime.now_us):
        if told.what == REDACTION and told.note:
            try:
                known = Intention.unpack(told.note)
            except StateCorruptedError:
                continue
            if (known.text, known.replacement) == (needle.text, needle.replacement):
                return known
    # Why it is done is recorded in clear: the text doesn't stay in that.
    told = needle.replaced(reason)
    return Intention(core.runtime.random_bytes(8).hex(), needle.text, needle.replacement, told)


def go_on(core: Core) -> None:
    """When a store is opened: finish redactions, tell of imports. Whatever is wrong, the store is open."""
    for name, told in cut_short(core.backend, core.space, core.runtime.now_us):
        if told.what != REDACTION:
            warnings.warn(f"{core.backend.url}: {told}", stacklevel=2)
            continue
        try:
            if told.note:
                carry_out(core, Intention.unpack(told.note), None, 0.0)
            else:
                purge(core, name, 0.0)
        except EverthreadError as error:
            core.background_error = error
