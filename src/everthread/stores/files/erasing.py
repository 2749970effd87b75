"""Erasure in a file store: the ledger, the sealed values of somebody, getting their bytes off the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from everthread.stores.byte_scan import Bytes, PlainFile, base64_forms, search
from everthread.stores.contract import FINISHED, ErasedKey, Progress, Purged, Residues, SealedRow
from everthread.stores.files.access import Access
from everthread.stores.files.content import Content
from everthread.stores.files.disk import TEMPORARY
from everthread.stores.files.layout import TEXT_INDEX
from everthread.stores.files.sealed import obliterate
from everthread.stores.sqlite.raw import RawFile
from everthread.stores.text_index import TextIndex


class Erasing:
    """What :class:`FileBackend` does about persons."""

    _access: Access
    _texts: TextIndex

    def note_erasures(self, keys: Sequence[ErasedKey]) -> None:
        self._access.write(lambda content: content.ledger.note(keys))

    def erasures(self, unfinished: bool = False) -> list[ErasedKey]:
        def work(content: Content) -> list[ErasedKey]:
            found = [entry for _, entry in sorted(content.ledger.read().items())]
            return [entry for entry in found if entry.phase < FINISHED] if unfinished else found

        return self._access.read(work)

    def erased(self, key_ids: Iterable[bytes]) -> set[bytes]:
        wanted = set(key_ids)
        return self._access.read(lambda content: wanted & content.ledger.read().keys())

    def sealed_under(self, key_ids: Sequence[bytes], after: bytes, limit: int) -> list[SealedRow]:
        return self._access.read(lambda content: content.sealed.under(key_ids, after, limit))

    def drop_sealed(self, key_ids: Sequence[bytes]) -> int:
        return self._access.write(lambda content: content.sealed.drop(key_ids))

    def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        def work(content: Content) -> int:
            left = [path for path in _files(self._access.root) if _is_left_over(path)]
            for number, path in enumerate(left, 1):
                obliterate(path)
                if progress is not None:
                    progress("removing unfinished files", number / len(left))
            content.views.flush(all_=True)
            return len(left)

        self._texts.drop()
        removed = self._access.write(work)
        done = ("files of sealed values overwritten and removed", f"{removed} unfinished files removed")
        return Purged(done=done, unreached=("what a version control system or a file system keeps of them",))

    def residues(self, needles: Sequence[bytes], progress: Progress | None = None) -> Residues:
        forms = [form for needle in needles for form in (needle, *base64_forms(needle))]
        index = os.path.join(self._access.root, TEXT_INDEX)
        # Nobody but SQLite may open its shared memory; there are numbers and sums in it.
        paths = [path for path in _files(self._access.root) if path != f"{index}-shm"]

        def opened(path: str) -> Bytes:
            return RawFile(path) if path.startswith(index) else PlainFile(path)

        found = search(paths, forms, progress, opened)
        looked = ((self._access.root, sum(size for _, size in found.looked)),)
        return Residues(looked=looked, hits=found.hits, unreached=found.unreached)


def _files(root: str) -> list[str]:
    """Every file below a folder, leaving out what belongs to a version control system."""
    found = []
    for folder, inside, names in os.walk(root):
        inside[:] = [name for name in inside if name != ".git"]
        found += [os.path.join(folder, name) for name in names]
    return [path for path in found if os.path.isfile(path) and not os.path.islink(path)]


def _is_left_over(path: str) -> bool:
    """Whether whoever wrote this was interrupted: while somebody has the turn, nobody is writing."""
    return os.path.basename(path).startswith(TEMPORARY)
