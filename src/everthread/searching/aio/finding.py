"""``store.search()``: a question put to all threads of a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.errors import (
    InvalidValueError,
    StateCorruptedError,
    StoreUnavailableError,
    ThreadNotFoundError,
)
from everthread.model.arguments import check_progress, check_several
from everthread.model.names import check_name
from everthread.searching.aio.gathering import Gathering
from everthread.searching.aio.indexing import Indexer
from everthread.searching.hits import Hit, Hits, excerpt
from everthread.searching.marks import entry_key, read_position
from everthread.searching.ranking import Ranking
from everthread.searching.texts import DOCUMENT_KINDS, KINDS, item_id, item_text, kind_of_log
from everthread.searching.words import Question, ask
from everthread.stores.texts import TextFound, Wanted
from everthread.threads.lifetimes import left_s

if TYPE_CHECKING:
    from everthread.stores.contract import Found
    from everthread.threads.aio.core import Core
    from everthread.threads.reports import Progress

_PAGE = 200
LIMIT_MAX = 1_000
#: How many more texts are asked for than hits are wanted: some may have changed since they were indexed.
_SPARE = 20
#: How often a search begins anew because an erasure has emptied the index meanwhile.
_TRIES = 5


async def search(
    core: Core,
    text: str,
    *,
    kinds: Collection[str] | None,
    prefix: str,
    limit: int,
    progress: Progress | None,
) -> Hits:
    """What :meth:`Store.search` promises."""
    question = ask(text)
    wanted = _checked_kinds(kinds)
    check_progress(progress)
    if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
        raise InvalidValueError(f"limit is a number from 1 to {LIMIT_MAX:,}", path="limit")
    if prefix != "":
        prefix = check_name(prefix, "prefix")
    way = Indexed if core.backend.capabilities.texts else Scan
    return await way(core, question, wanted, progress).run(prefix, limit)


def _checked_kinds(kinds: Collection[str] | None) -> frozenset[str]:
    if kinds is None:
        return frozenset(KINDS)
    if isinstance(kinds, str):
        kinds = [kinds]
    check_several(kinds, "kinds", "kinds")
    for kind in kinds:
        if kind not in KINDS:
            raise InvalidValueError(f"there is no kind {kind!r}; kinds are {', '.join(KINDS)}", path="kinds")
    return frozenset(kinds)


class _Way:
    """What both ways of searching have: a question, and threads that may be too damaged to be looked at."""

    def __init__(
        self, core: Core, question: Question, kinds: frozenset[str], progress: Progress | None
    ) -> None:
        self._core = core
        self._question = question
        self._kinds = kinds
        self._progress = progress
        self._skipped: list[str] = []
        self._looked_at = 0

    async def _threads(self, prefix: str) -> AsyncIterator[Found]:
        """The threads of the namespace that haven't expired, by name."""
        now_us = self._core.runtime.now_us()
        after: str | None = None
        while page := await self._core.backend.lines(self._core.space, prefix, after, _PAGE):
            for found in page:
                if left_s(found, now_us) <= 0:
                    continue
                if self._progress is not None:
                    # How many there are is known at the end only.
                    self._looked_at += 1
                    self._progress(self._looked_at, 0)
                yield found
            after = page[-1].line.name

    def _hit(self, thread: str, kind: str, text: str, **more: Any) -> Hit:
        shown, marks = excerpt(text, self._question)
        return Hit(thread=thread, kind=kind, excerpt=shown, marks=marks, **more)

    def _hits(self, hits: list[Hit]) -> Hits:
        answer = Hits(hits)
        answer.skipped = tuple(self._skipped)
        return answer


class Scan(_Way):
    """Looks through every text: what stores do that keep no index."""

    async def run(self, prefix: str, limit: int) -> Hits:
        ranking: Ranking[Hit] = Ranking(self._question)
        async for found in self._threads(prefix):
            try:
                await self._look(found, ranking)
            except ThreadNotFoundError:
                """Deleted just now."""
            except (StateCorruptedError, StoreUnavailableError):
                self._skipped.append(found.line.name)
        return self._hits([msgspec.structs.replace(hit, score=score) for score, hit in ranking.best(limit)])

    async def _look(self, found: Found, ranking: Ranking[Hit]) -> None:
        name = found.line.name
        gathered = Gathering(self._core, found.line, await self._core.head(found))
        for entry in gathered.entries:
            weight = ranking.weigh(entry.text) if entry.kind in self._kinds else None
            if weight is not None:
                ranking.keep(weight, self._hit(name, entry.kind, entry.text, id=entry.id))
        for log, state in gathered.logs.items():
            kind = kind_of_log(log)
            if kind not in self._kinds:
                continue
            index = -1
            for first, last in state.pieces:
                async for _, item in gathered.items(log, first, last):
                    index += 1
                    text = item_text(item)
                    weight = ranking.weigh(text)
                    if weight is not None:
                        hit = self._hit(name, kind, text, id=item_id(item), log=log, index=index)
                        ranking.keep(weight, hit)


class Indexed(_Way):
    """Asks the index of the store, brought up to date, and looks at what it found."""

    async def run(self, prefix: str, limit: int) -> Hits:
        for _ in range(_TRIES):
            indexer = Indexer(self._core)
            threads = await self._cover(indexer, prefix)
            uids = tuple(threads) if prefix else None
            wanted = Wanted(self._question.terms, tuple(sorted(self._kinds)), uids, limit + _SPARE)
            texts = await self._core.backend.find_texts(self._core.space, wanted)
            if await indexer.still_covers(threads):
                break
        self._gathered: dict[bytes, Gathering] = {}
        hits: list[Hit] = []
        for text in texts:
            hit = await self._look(threads.get(text.uid), text)
            if hit is not None:
                hits.append(hit)
                if len(hits) == limit:
                    break
        return self._hits(hits)

    async def _cover(self, indexer: Indexer, prefix: str) -> dict[bytes, Found]:
        """Bring the index up to date with the threads, which are returned by their uids."""
        await indexer.begin()
        threads: dict[bytes, Found] = {}
        self._skipped.clear()
        async for found in self._threads(prefix):
            try:
                await indexer.cover(found)
                threads[found.line.uid] = found
            except ThreadNotFoundError:
                """Deleted just now."""
            except (StateCorruptedError, StoreUnavailableError):
                self._skipped.append(found.line.name)
        if not prefix and not self._skipped:
            await indexer.forget_others(set(threads))
        return threads

    async def _look(self, found: Found | None, text: TextFound) -> Hit | None:
        """What the index found, as it stands in the thread; ``None`` if it doesn't any more."""
        if found is None:
            return None
        name = found.line.name
        try:
            gathered = self._gathered.get(text.uid)
            if gathered is None:
                gathered = Gathering(self._core, found.line, await self._core.head(found))
                self._gathered[text.uid] = gathered
            if text.kind in DOCUMENT_KINDS:
                for entry in gathered.entries:
                    if entry_key(entry) == text.key:
                        return self._hit(name, entry.kind, entry.text, id=entry.id, score=text.score)
                return None
            log, position = read_position(text.key)
            state = gathered.logs.get(log)
            index = None if state is None else state.index_of(position)
            if index is None:
                return None
            async for _, item in gathered.items(log, position, position + 1):
                where = {"id": item_id(item), "log": log, "index": index, "score": text.score}
                hit = self._hit(name, text.kind, item_text(item), **where)
                # Without a mark it was something else that the index knew of this place.
                return hit if hit.marks else None
        except ThreadNotFoundError:
            """Deleted just now."""
        except (StateCorruptedError, StoreUnavailableError):
            self._skipped.append(name)
        return None
