"""Export, import and copy as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from everthread.arguments import check_path, check_progress
from everthread.codec.archive import Header, KeysEntry, SealedEntry
from everthread.codec.seal import SealedRef
from everthread.errors import UsageError
from everthread.keyring.parcel import KeyParcel, ParcelSecret
from everthread.stores.contract import SealedRow
from everthread.threads.reports import Progress
from everthread.threads.sync.core import Core
from everthread.threads.sync.unfinished import COPY, IMPORT, begin, end, work
from everthread.transfer.archive_file import ArchiveReader, ArchiveWriter
from everthread.transfer.keytaking import KeyTaking
from everthread.transfer.putting import OnConflict, Putter
from everthread.transfer.reports import ExportReport, ImportReport
from everthread.transfer.taking import REMEMBERED, Taker


def export(
    core: Core,
    path: str | os.PathLike[str],
    *,
    every: bool,
    progress: Progress | None,
    keys: str | bytes | None = None,
) -> ExportReport:
    """Write what a store holds into an archive at ``path``, which must not exist; with ``keys``, a secret,
    also the keys that it needs, under that."""
    place = check_path(path)
    check_progress(progress)
    secret = None if keys is None else ParcelSecret(keys)
    lent = 0
    file = ArchiveWriter(place)
    taker = Taker(core, every=every, progress=progress)
    try:
        header = taker.header()
        file.add(header)
        for entry in taker.entries():
            file.add(entry)
        if secret is not None and taker.key_ids:
            parcels = core.vault.keyring.lend(taker.key_ids)
            lent = sum(len(parcel.keys) for parcel in parcels)
            for parcel in parcels:
                for closed in _closed(secret, parcel, header.id):
                    file.add(closed)
        file.finish()
    finally:
        file.abandon()
    taken = taker.taken
    return ExportReport(
        path=place,
        bytes=file.bytes,
        threads=taken.threads,
        versions=taken.versions,
        streams=taken.streams,
        events=taken.events,
        sealed=taken.sealed,
        keys=lent,
        skipped=tuple(taken.skipped),
    )


def _closed(secret: ParcelSecret, parcel: KeyParcel, archive: bytes) -> list[KeysEntry]:
    return list(secret.close([parcel], archive))


def import_from(
    core: Core,
    path: str | os.PathLike[str],
    *,
    rule: OnConflict,
    every: bool,
    progress: Progress | None,
    settle: Callable[[], Any],
    keys: str | bytes | None = None,
) -> ImportReport:
    """Bring what an archive holds into a store. The whole archive is checked before anything is written, and
    whether ``keys`` opens the keys in it. ``settle`` is called when all is there; until after that a mark
    says that this was begun."""
    place = check_path(path)
    check_progress(progress)
    opener = KeyTaking(core, None if keys is None else ParcelSecret(keys))
    header, looking = _pass(core, place, rule, every, None, None, opener)
    opener.check()
    total = header.versions + header.events
    mark = f"{IMPORT}/{header.id.hex()}"
    begin(core, mark, work(core, IMPORT, os.path.abspath(place)))
    report = (_pass(core, place, rule, every, looking, progress, opener, total))[1].report
    taken = opener.take_in()
    missing = opener.missing()
    settle()
    end(core, mark)
    return msgspec.structs.replace(report, keys=taken, keys_missing=missing)


class _Put(Putter):
    """A putter that remembers its report."""

    report: ImportReport


class _LookingBack:
    """Finds personal values again that came before in an archive: as far back as those lie that whoever wrote
    it took for granted."""

    def __init__(self, file: ArchiveReader) -> None:
        self._file = file
        self._places: dict[bytes, tuple[int, int]] = {}

    def note(self, entry: SealedEntry) -> None:
        """This has just been read."""
        for value_id, *_ in entry.rows:
            self._places.pop(value_id, None)
            self._places[value_id] = self._file.place

    def trim(self) -> None:
        """What these came for has been read as well: those that lie too far back come again when needed."""
        while len(self._places) > REMEMBERED:
            self._places.pop(next(iter(self._places)))

    def again(self, wanted: Mapping[bytes, SealedRef]) -> list[SealedRow]:
        rows: list[SealedRow] = []
        for place in sorted({self._places[value_id] for value_id in wanted if value_id in self._places}):
            entry = self._file.look_back(place)
            if isinstance(entry, SealedEntry):
                rows.extend(row for row in entry.rows if row[0] in wanted)
        return rows


def _pass(
    core: Core,
    path: str,
    rule: OnConflict,
    every: bool,
    dry: Putter | None,
    progress: Progress | None,
    keys: KeyTaking,
    total: int = 0,
) -> tuple[Header, _Put]:
    """Go through the archive once: without ``dry`` to look, with it to write."""
    file = ArchiveReader(path)
    try:
        header = file.header
        check_namespaces(header, core.space, every)
        origin = None if dry is None else _LookingBack(file)
        putter = _Put(
            core,
            rule,
            namespaces=header.namespaces,
            dry=dry,
            origin=origin,
            progress=progress,
            total=total,
        )
        while (entry := file.next()) is not None:
            if isinstance(entry, KeysEntry):
                if dry is None:
                    keys.add(entry, header.id)
                continue
            if isinstance(entry, SealedEntry):
                if origin is None:
                    keys.note(entry)
                else:
                    origin.note(entry)
            putter.put(entry)
            if origin is not None and not isinstance(entry, SealedEntry):
                origin.trim()
        putter.report = putter.finish()
        return header, putter
    finally:
        file.close()


def check_namespaces(header: Header, namespace: str, every: bool) -> None:
    """What an archive holds goes where it came from: its sealed values open nowhere else."""
    if header.namespaces == [namespace] or every:
        return
    if not header.namespaces:
        raise UsageError("this archive holds every namespace; say so: import_from(…, every_namespace=True)")
    theirs = ", ".join(map(repr, header.namespaces))
    raise UsageError(f"this archive holds the namespace {theirs}; open the store with that namespace")


def copy(
    core: Core,
    target: Core,
    *,
    rule: OnConflict,
    every: bool,
    progress: Progress | None,
    settle: Callable[[], Any],
) -> ImportReport:
    """Bring what a store holds into another one, without a file between them."""
    if core.space != target.space:
        raise UsageError(
            "both stores must be opened with the same namespace: what is sealed opens nowhere else"
        )
    looking = Taker(core, every=every)
    header = looking.header()
    dry = Putter(target, rule, namespaces=header.namespaces)
    for entry in looking.outline(target.backend):
        dry.put(entry)
    dry.finish()
    taker = Taker(core, every=every)
    taker.header()
    total = header.versions + header.events
    mark = f"{COPY}/{sha256(core.backend.url.encode()).hexdigest()}"
    begin(target, mark, work(target, COPY, core.backend.url))
    putter = Putter(
        target,
        rule,
        namespaces=header.namespaces,
        dry=dry,
        origin=taker,
        progress=progress,
        total=total,
    )
    opener = KeyTaking(target, None)
    for entry in taker.entries():
        if isinstance(entry, SealedEntry):
            opener.note(entry)
        putter.put(entry)
    report = putter.finish()
    missing = opener.missing()
    settle()
    end(target, mark)
    return msgspec.structs.replace(report, keys_missing=missing)
