"""A version of a thread by its name: number, id, label, or distance from the head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.errors import UsageError, VersionNotFoundError
from everthread.versions import HOW_TO_NAME, Version, VersionName, parse_version_name

if TYPE_CHECKING:
    from everthread.stores.contract import Line
    from everthread.threads.aio.reader import Reader
    from everthread.threads.head_cache import CachedHead

#: Versions with the same label that are named in an error.
_NAMED_MAX = 5


async def find_named(reader: Reader, thread: str, line: Line, head: CachedHead, text: str) -> Version:
    """The version that a text names, as seen from the head.

    Raises :class:`VersionNotFoundError`, and :class:`UsageError` if several have that label.
    """
    name = parse_version_name(text)
    seq = name.seq
    if name.back is not None:
        seq = head.seq - name.back
    elif name.label is not None:
        seq = await _labelled(reader, thread, line, head, name)
    if seq is not None and 1 <= seq <= head.seq:
        found = head.version if seq == head.seq else (await reader.version(line, seq))[0]
        if name.id in (None, found.id):
            return found
    raise VersionNotFoundError(f"{thread!r} has no version {_shortened(text)}. {HOW_TO_NAME}")


async def _labelled(
    reader: Reader, thread: str, line: Line, head: CachedHead, name: VersionName
) -> int | None:
    seqs: list[int] = []
    async for version in reader.history(line, head.seq):
        if version.label == name.label:
            seqs.append(version.seq)
            if len(seqs) > _NAMED_MAX:
                break
    if len(seqs) > 1:
        more = " and older ones" if len(seqs) > _NAMED_MAX else ""
        numbers = ", ".join(map(str, seqs[:_NAMED_MAX]))
        raise UsageError(
            f"several versions of {thread!r} have the label {_shortened(name.label or '')}: "
            f"{numbers}{more}; name "
            "the one you mean by its number"
        )
    return seqs[0] if seqs else None


def _shortened(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:79]!r}…"
