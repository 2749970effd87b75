# Generated from src/everthread/searching/aio/finding.py by tools/twin.py: change that, then run: make twin
"""``store.search()``: a question put to all threads of a store."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import msgspec

from everthread.errors import InvalidValueError, StateCorruptedError
from everthread.model.names import check_name
from everthread.searching.hits import Hit, Hits, excerpt
from everthread.searching.ranking import Ranking
from everthread.searching.sync.gathering import Gathering
from everthread.searching.texts import KINDS, item_id, item_text, kind_of_log
from everthread.searching.words import Question, ask
from everthread.threads.lifetimes import left_s

if TYPE_CHECKING:
    from everthread.stores.contract import Found
    from everthread.threads.reports import Progress
    from everthread.threads.sync.core import Core

_PAGE = 200
LIMIT_MAX = 1_000


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
    if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
        raise InvalidValueError(f"limit is a number from 1 to {LIMIT_MAX:,}", path="limit")
    if prefix != "":
        prefix = check_name(prefix, "prefix")
    return Scan(core, question, wanted).run(prefix, limit, progress)


def _checked_kinds(kinds: Collection[str] | None) -> frozenset[str]:
    if kinds is None:
        return frozenset(KINDS)
    wanted = frozenset([kinds] if isinstance(kinds, str) else kinds)
    for kind in wanted:
        if kind not in KINDS:
            raise InvalidValueError(f"there is no kind {kind!r}; kinds are {', '.join(KINDS)}", path="kinds")
    return wanted


class Scan:
    """Looks through every text: what stores do that keep no index."""

    def __init__(self, core: Core, question: Question, kinds: frozenset[str]) -> None:
        self._core = core
        self._question = question
        self._kinds = kinds
        self._ranking: Ranking[Hit] = Ranking(question)

    def run(self, prefix: str, limit: int, progress: Progress | None) -> Hits:
        skipped = []
        looked_at = 0
        for found in live_threads(self._core, prefix):
            if progress is not None:
                # How many there are is known at the end only.
                looked_at += 1
                progress(looked_at, 0)
            try:
                self._look(found)
            except StateCorruptedError:
                skipped.append(found.line.name)
        hits = Hits(_scored(hit, score) for score, hit in self._ranking.best(limit))
        hits.skipped = tuple(skipped)
        return hits

    def _look(self, found: Found) -> None:
        name = found.line.name
        gathered = Gathering(self._core, found.line, self._core.head(found))
        for entry in gathered.entries():
            if entry.kind in self._kinds:
                self._weigh(name, entry.kind, entry.id, entry.text, None, None)
        for log, state in gathered.logs.items():
            kind = kind_of_log(log)
            if kind not in self._kinds:
                continue
            index = 0
            for first, last in state.pieces:
                for _, item in gathered.items(log, first, last):
                    self._weigh(name, kind, item_id(item), item_text(item), log, index)
                    index += 1

    def _weigh(self, thread: str, kind: str, id_: str, text: str, log: str | None, index: int | None) -> None:
        weight = self._ranking.weigh(text)
        if weight is not None:
            shown, marks = excerpt(text, self._question)
            hit = Hit(
                thread=thread, kind=kind, id=id_, excerpt=shown, marks=marks, score=0.0, log=log, index=index
            )
            self._ranking.keep(weight, hit)


def _scored(hit: Hit, score: float) -> Hit:
    return msgspec.structs.replace(hit, score=score)


def live_threads(core: Core, prefix: str) -> Iterator[Found]:
    """The threads of a namespace that haven't expired, by name."""
    now_us = core.runtime.now_us()
    after: str | None = None
    while page := core.backend.lines(core.space, prefix, after, _PAGE):
        for found in page:
            if left_s(found, now_us) > 0:
                yield found
        after = page[-1].line.name
