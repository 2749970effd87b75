"""Finding words in what agents keep: ``store.search()``, by the index of the store or by reading."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.arguments import check_name, check_progress, check_several
from everthread.errors import (
    InvalidValueError,
    StateCorruptedError,
    StoreUnavailableError,
    ThreadNotFoundError,
)
from everthread.history.retention import Spans
from everthread.search.index import Indexer, Owners, TextReader, entry_key, parted, read_position, spans_of
from everthread.search.text import (
    DOCUMENT_KINDS,
    KINDS,
    Question,
    Ranking,
    ask,
    item_id,
    item_text,
    kind_of_log,
    places,
    words_of,
)
from everthread.stores.contract import TextFound, Wanted
from everthread.threads.lifetimes import left_s

if TYPE_CHECKING:
    from everthread.history.logs import LogState
    from everthread.stores.contract import Found
    from everthread.threads.reports import Progress
    from everthread.threads.sync.core import Core

#: How much of a text an excerpt shows, and how much of that comes before the first word that was found.
EXCERPT_CHARACTERS = 160
_BEFORE = 48
_PAGE = 200
LIMIT_MAX = 1_000
#: How many more texts are asked for than hits are wanted: some may have changed since they were indexed.
_SPARE = 20
_ASKED_MAX = 20_000
#: How often a search begins anew because an erasure has emptied the index meanwhile.
_TRIES = 5


def search(
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
    return way(core, question, wanted, progress).run(prefix, limit)


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


class _Search:
    """What both ways of searching have: a question, and threads that may be too damaged to be looked at."""

    def __init__(
        self, core: Core, question: Question, kinds: frozenset[str], progress: Progress | None
    ) -> None:
        self._core = core
        self._question = question
        self._kinds = kinds
        self._progress = progress
        self._skipped: list[str] = []

    def _threads(self, prefix: str) -> list[Found]:
        """The threads of the namespace that haven't expired, the oldest first: forks after what they share
        texts with."""
        now_us = self._core.runtime.now_us()
        after: str | None = None
        threads: list[Found] = []
        while page := self._core.backend.lines(self._core.space, prefix, after, _PAGE):
            threads += [found for found in page if left_s(found, now_us) > 0]
            after = page[-1].line.name
        return sorted(threads, key=lambda found: found.line.id)

    def _tell(self, looked_at: int, total: int) -> None:
        if self._progress is not None:
            self._progress(looked_at, total)

    def _hit(self, thread: str, kind: str, text: str, **more: Any) -> Hit:
        shown, marks = excerpt(text, self._question)
        return Hit(thread=thread, kind=kind, excerpt=shown, marks=marks, **more)

    def _hits(self, hits: list[Hit]) -> Hits:
        answer = Hits(hits)
        answer.skipped = tuple(self._skipped)
        return answer


class Indexed(_Search):
    """Asks the index of the store, brought up to date, and looks at what it found."""

    def run(self, prefix: str, limit: int) -> Hits:
        for _ in range(_TRIES):
            self._indexer = Indexer(self._core)
            threads = self._cover()
            self._chosen = {
                uid: found for uid, found in threads.items() if found.line.name.startswith(prefix)
            }
            self._gathered: dict[bytes, TextReader] = {}
            hits = self._ask(limit, everybody=not prefix)
            if self._indexer.still_covers(threads):
                break
        self._skipped = [name for name in self._skipped if name.startswith(prefix)]
        return self._hits(hits)

    def _ask(self, limit: int, *, everybody: bool) -> list[Hit]:
        uids = None
        if not everybody:
            lenders = (lender for uid in self._chosen for lender in self._indexer.lending.lenders(uid))
            uids = tuple(dict.fromkeys((*self._chosen, *lenders)))
        kinds, asked = tuple(sorted(self._kinds)), limit + _SPARE
        while True:
            wanted = Wanted(self._question.terms, kinds, uids, asked)
            texts = self._core.backend.find_texts(self._core.space, wanted)
            hits = list(self._found(texts))
            if len(hits) >= limit or len(texts) < asked or asked >= _ASKED_MAX:
                return hits[:limit]
            # Too many were of others, or aren't there any more.
            asked *= 4

    def _cover(self) -> dict[bytes, Found]:
        """Bring the index up to date with all threads, which are returned by their uids."""
        indexer = self._indexer
        indexer.begin()
        threads: dict[bytes, Found] = {}
        self._skipped.clear()
        listed = self._threads("")
        for number, found in enumerate(listed, 1):
            try:
                indexer.cover(found)
                threads[found.line.uid] = found
            except ThreadNotFoundError:
                """Deleted just now."""
            except (StateCorruptedError, StoreUnavailableError):
                self._skipped.append(found.line.name)
            self._tell(number, len(listed))
        if not self._skipped:
            indexer.forget_others(set(threads))
        return threads

    def _found(self, texts: list[TextFound]) -> Iterator[Hit]:
        told: set[tuple[bytes, str]] = set()
        for text in texts:
            owner = text.uid
            if text.kind not in DOCUMENT_KINDS:
                owner = self._indexer.lending.owner(text.uid, *read_position(text.key))
            if (owner, text.key) in told:
                # Of two that share it, each may have it in the index, for a while.
                continue
            for found in self._holders(text):
                hit = self._look(found, text)
                if hit is not None:
                    told.add((owner, text.key))
                    yield hit
                    break

    def _holders(self, text: TextFound) -> Iterator[Found]:
        """The threads that hold a text and are asked about, the oldest first."""
        if text.kind in DOCUMENT_KINDS:
            if text.uid in self._chosen:
                yield self._chosen[text.uid]
            return
        for uid in self._indexer.lending.holders(text.uid, *read_position(text.key)):
            if uid in self._chosen:
                yield self._chosen[uid]

    def _look(self, found: Found, text: TextFound) -> Hit | None:
        """What the index found, as it stands in the thread; ``None`` if it doesn't any more."""
        name, uid = found.line.name, found.line.uid
        try:
            gathered = self._gathered.get(uid)
            if gathered is None:
                gathered = TextReader(self._core, found.line, self._core.head(found))
                self._gathered[uid] = gathered
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
            for _, item in gathered.items(log, position, position + 1):
                where = {"id": item_id(item), "log": log, "index": index, "score": text.score}
                hit = self._hit(name, text.kind, item_text(item, log), **where)
                # Without a mark it was something else that the index knew of this place.
                return hit if hit.marks else None
        except ThreadNotFoundError:
            """Deleted just now."""
        except (StateCorruptedError, StoreUnavailableError):
            self._skipped.append(name)
        return None


class Scan(_Search):
    """Looks through every text: what stores do that keep no index."""

    def run(self, prefix: str, limit: int) -> Hits:
        ranking: Ranking[Hit] = Ranking(self._question)
        self._owners = Owners(self._core)
        #: By whose own they are, and by log, the positions that were looked at.
        self._seen: dict[tuple[bytes, str], Spans] = {}
        threads = self._threads(prefix)
        for number, found in enumerate(threads, 1):
            try:
                self._look(found, ranking)
            except ThreadNotFoundError:
                """Deleted just now."""
            except (StateCorruptedError, StoreUnavailableError):
                self._skipped.append(found.line.name)
            self._tell(number, len(threads))
        return self._hits([msgspec.structs.replace(hit, score=score) for score, hit in ranking.best(limit)])

    def _look(self, found: Found, ranking: Ranking[Hit]) -> None:
        name = found.line.name
        gathered = TextReader(self._core, found.line, self._core.head(found))
        for entry in gathered.entries:
            weight = ranking.weigh(entry.text) if entry.kind in self._kinds else None
            if weight is not None:
                ranking.keep(weight, self._hit(name, entry.kind, entry.text, id=entry.id))
        for log, state in gathered.logs.items():
            kind = kind_of_log(log)
            if kind not in self._kinds:
                continue
            for seen, first, last in self._unseen(found, log, state):
                for position, item in gathered.items(log, first, last + 1):
                    text = item_text(item, log)
                    weight = ranking.weigh(text)
                    if weight is not None:
                        index = state.index_of(position)
                        hit = self._hit(name, kind, text, id=item_id(item), log=log, index=index)
                        ranking.keep(weight, hit)
                # Not before: what can't be read here may be readable in a thread that shares it.
                seen.add(first, last)

    def _unseen(self, found: Found, log: str, state: LogState) -> list[tuple[Spans, int, int]]:
        """The positions that weren't looked at in an older thread, and where to note that they were."""
        unseen: list[tuple[Spans, int, int]] = []
        for start, stop, owner in self._owners.of(found.line, log):
            own = parted(spans_of(state), Spans([(start, stop - 1)]))[0]
            seen = self._seen.setdefault((owner, log), Spans())
            unseen += [(seen, left.start, left.stop - 1) for left in parted(own, seen)[1]]
        return unseen


# ── hits ────────────────────────────────────────────────────────────────────────────────────────────────


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """One place at which a question was answered, in the newest version of a thread.

    ``kind`` is ``message``, ``todo``, ``decision``, ``open_loop``, ``intention``, ``constraint``,
    ``context``, ``task``, or ``item`` for other logs; ``id`` is that of the message or item, a
    context key, or empty. ``log`` and ``index`` say where in which log it stands. ``marks`` are the found
    words in ``excerpt``, as (start, stop). Scores can be compared within one answer only.
    """

    thread: str
    kind: str
    id: str
    excerpt: str
    marks: tuple[tuple[int, int], ...]
    score: float = 0.0
    log: str | None = None
    index: int | None = None


def excerpt(text: str, question: Question) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The part of a text that shows best why it was found, on one line, and the found words in it."""
    words = list(words_of(text))
    found = sorted({place for term in question.terms for place in places(words, term)})
    start, stop = _window(text, found)
    head, tail = "…" if start else "", "…" if stop < len(text) else ""
    # One character for another, so that the marks stay where they are.
    shown = "".join(" " if character.isspace() else character for character in text[start:stop])
    shift = len(head) - start
    marks = tuple((a + shift, b + shift) for a, b in found if start <= a and b <= stop)
    return head + shown + tail, marks


def _window(text: str, found: list[tuple[int, int]]) -> tuple[int, int]:
    """The stretch that holds most of the found words, begun at the beginning of a word."""
    if len(text) <= EXCERPT_CHARACTERS:
        return 0, len(text)
    best = start = ahead = 0
    for at, (first, _) in enumerate(found):
        while ahead < len(found) and found[ahead][1] <= first + EXCERPT_CHARACTERS - _BEFORE:
            ahead += 1
        if ahead - at > best:
            best, start = ahead - at, first
    start = max(0, start - _BEFORE)
    space = text.rfind(" ", max(0, start - _BEFORE), start)
    if space >= 0:
        start = space + 1
    return start, min(len(text), start + EXCERPT_CHARACTERS)


class Hits(tuple[Hit, ...]):
    """Hits, the best first. ``skipped`` names the threads that could not be looked at: they are damaged, or
    in a cold archive that the store wasn't opened with."""

    skipped: tuple[str, ...] = ()
