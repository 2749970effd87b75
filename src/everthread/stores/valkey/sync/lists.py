# Generated from src/everthread/stores/valkey/aio/lists.py by tools/twin.py: change that, then run: make twin
"""Lists of threads: by name, by tags, and those whose tags are out of date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everthread.stores.contract import Found, Line
from everthread.stores.valkey import packing, scripts
from everthread.stores.valkey.keys import line_id, name_digest, name_tag
from everthread.stores.valkey.sync.calls import Ask
from everthread.stores.valkey.sync.writing import Writing

_PAGE = 256


class Lists(Writing):
    """The verbs that list lines. A list only says whom to ask for: each line says whether it is there."""

    def lines(self, space: str, prefix: str, after: str | None, limit: int) -> list[Found]:
        found: list[Found] = []
        for page in self._pages(space, prefix, after, limit):
            found += [entry for entry, _ in page]
            if len(found) >= limit:
                break
        return found[:limit]

    def untagged(self, space: str) -> list[tuple[Line, int]]:
        found = []
        for page in self._pages(space, "", None, _PAGE):
            for entry, tagged in page:
                if entry.newest is not None and entry.newest.seq > tagged:
                    found.append((entry.line, tagged))
        return found

    def lines_by_tags(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        places = [self._tag_index(space, name, value) for name, value in tags.items()]
        asks = [Ask(None, (place,), (b"ZRANGE", place, 0, -1, b"WITHSCORES")) for place in places]
        answers = self._calls.all(asks)
        common = set.intersection(*(set(answer[::2]) for answer in answers))
        found, gone = [], []
        refs = sorted(common)
        for at in range(0, len(refs), _PAGE):
            page = refs[at : at + _PAGE]
            asks = [self._found(_id(ref), tags=True) for ref in page]
            for ref, (parts, flat) in zip(page, self._calls.all(asks), strict=True):
                if parts is None or parts[3]:
                    gone.append(ref)
                    continue
                entry = packing.to_found(ref.decode().partition(":")[0], parts)
                has = packing.read_tags(flat)
                if entry.line.space == space and all(has.get(name) == value for name, value in tags.items()):
                    found.append(entry)
        # A line that was deleted never comes back.
        self._calls.all([Ask(None, (place,), (b"ZREM", place, ref)) for ref in gone for place in places])
        return sorted(found, key=lambda entry: entry.line.name)

    def _pages(  # type: ignore[no-untyped-def]
        self, space: str, prefix: str, after: str | None, limit: int
    ):
        """Lines by name, page by page, each with the version that its tags cover."""
        names = self._keys.space(space)
        start, stop = lexical(prefix, after)
        wanted = min(max(limit, 0), _PAGE)
        while wanted:
            page = self._calls.command(names, "ZRANGEBYLEX", names, start, stop, "LIMIT", 0, wanted)
            yield self._look_up(space, [name.decode() for name in page])
            if len(page) < wanted:
                return
            start = b"(" + page[-1]

    def _look_up(self, space: str, names: Sequence[str]) -> list[tuple[Found, int]]:
        answers = self._calls.all([self._find(space, name) for name in names])
        found = []
        for name, answer in zip(names, answers, strict=True):
            if answer is not None and answer[1] is not None:
                parts, tag = answer[1], answer[0].decode().partition(":")[0]
                found.append((packing.to_found(tag, parts), int(parts[6])))
            elif answer is not None:
                entry = self._elsewhere_tagged(answer[0])
                if entry is not None:
                    found.append(entry)
            elif not self._whole:
                self._unlist(space, name)
        return found

    def _elsewhere_tagged(self, ref: bytes) -> tuple[Found, int] | None:
        (parts, _), *_ = self._calls.all([self._found(_id(ref))])
        if parts is None or parts[3]:
            return None
        return packing.to_found(ref.decode().partition(":")[0], parts), int(parts[6])

    def _unlist(self, space: str, name: str) -> None:
        """In a cluster: take a name off the list that leads nowhere, unless somebody is about to use it.

        Whoever lists a name does so with a token, and makes the line with it. A token that was made void
        doesn't make one any more, so that no line is ever there and not listed.
        """
        names, claims = self._name_lists(space)
        named, own = name_digest(space, name), name_tag(space, name)
        family = self._keys.family(own)
        listed = self._calls.command(claims, "HGET", claims, named)
        ref = self._calls.command(family, "HGET", family, b"n" + named)
        if ref is not None and not self._is_stale(ref):
            return
        fields = {"digest": named, "name_tag": own, "ref": ref or b"", "token": listed or False}
        keys = (family,)
        if self._calls.script(scripts.FREE, keys, (self._prefix, packing.pack(fields))):
            self._calls.script(scripts.UNLIST, (names, claims), (b"", name, named, listed or b""))


def lexical(prefix: str, after: str | None) -> tuple[bytes, bytes]:
    """From where to where names that have the prefix lie, of which the first comes after ``after``."""
    begin = prefix.encode()
    start = b"[" + begin if begin else b"-"
    if after is not None and after.encode() >= begin:
        start = b"(" + after.encode()
    # No byte of UTF-8 is as high as this.
    return start, b"(" + begin + b"\xff" if begin else b"+"


def _id(ref: bytes) -> int:
    tag, _, member = ref.decode().partition(":")
    return line_id(tag, int(member))
