"""What is to be thought of a damaged store: compared with what was ever committed to it.

A :class:`Chronicle` is told of everything while a store is made. :func:`judge` opens the damaged store, reads
all there is, asks it to verify itself, and says what came of it:

``harmless``   everything is as it was
``older``      nothing is wrong, but the newest commits are missing: the store is as it was earlier
``detected``   an error, a recovery or ``verify()`` says that something is wrong; what could be read is right
``misread``    something wrong was handed out, and only ``verify()`` or an error elsewhere shows it
``silent``     something is wrong and nothing says so

An exception that isn't Everthread's own is let through: that is worse than all of these.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from everthread.errors import EverthreadError
from everthread.store import Store
from everthread.store import open as open_store
from everthread.values import Personal

__all__ = ["Chronicle", "Outcome", "Salvaged", "Verdict", "judge", "salvaged"]

Outcome = Literal["harmless", "older", "detected", "misread", "silent"]
Moment = dict[str, str]


class Verdict(msgspec.Struct, frozen=True):
    """``wrong`` and ``said`` tell what was wrong and what said so; ``read`` of ``versions`` could be read."""

    outcome: Outcome
    wrong: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    read: int = 0
    versions: int = 0

    def __str__(self) -> str:
        said = "; ".join(self.said) or "silence"
        return f"{self.outcome}: {'; '.join(self.wrong) or 'nothing wrong'} ({said})"


class Chronicle(msgspec.Struct):
    """Everything that was ever committed to a store, by version id."""

    #: What each version holds, as a digest.
    contents: dict[str, str] = {}
    #: The ids of a thread's versions, newest first, as of each version.
    pasts: dict[str, tuple[str, ...]] = {}
    #: The head of every thread at every moment; none at the first.
    moments: list[Moment] = msgspec.field(default_factory=lambda: [{}])
    #: The labels of those that have one.
    labels: dict[str, str] = {}
    #: Commit keys and the ids of their versions, step keys and their results, by thread.
    keys: dict[str, dict[str, str]] = {}
    steps: dict[str, dict[str, Any]] = {}
    #: Metadata to search for, and what is found at the last moment.
    searches: list[tuple[dict[str, Any], list[str]]] = []

    def note(self, thread: Any, *, key: str | None = None) -> None:
        """Say that ``thread`` has a new head."""
        head = thread.head
        self.contents[head.id] = digest(thread)
        if head.label is not None:
            self.labels[head.id] = head.label
        self.pasts[head.id] = tuple(version.id for version in thread.history(limit=None))
        self.moments.append({**self.last, thread.name: head.id})
        if key is not None:
            self.keys.setdefault(thread.name, {})[key] = head.id

    def note_deleted(self, name: str) -> None:
        """Say that a thread is gone."""
        self.moments.append({other: head for other, head in self.last.items() if other != name})

    @property
    def last(self) -> Moment:
        return self.moments[-1]


def digest(view: Any) -> str:
    """What a thread holds, document and logs, in few characters. Of personal values, what they hold."""
    held = [_plain(view.state.plain()), [(name, _plain(list(view.log(name)))) for name in sorted(view.logs)]]
    return hashlib.sha256(repr(held).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return ("personal", _plain(value.value)) if isinstance(value, Personal) else value


def judge(
    url: str,
    chronicle: Chronicle,
    *,
    every: int = 1,
    writes: bool = False,
    per_thread: bool = False,
    **options: Any,
) -> Verdict:
    """Open the store at ``url`` and say what became of it; ``options`` are those of :func:`everthread.open`.

    ``every`` reads only each n-th version of the past. With ``writes`` commit keys and steps are tried as
    well, which changes the store where these are lost. ``per_thread`` says that each thread has files of
    its own, so that one may be older than the others.
    """
    try:
        store = open_store(url, **options)
    except EverthreadError as error:
        return Verdict("detected", said=(f"opening: {_short(error)}",))
    with store:
        return _Judge(store, chronicle, every, per_thread).verdict(writes)


class _Judge:
    def __init__(self, store: Store, chronicle: Chronicle, every: int, per_thread: bool) -> None:
        self._store = store
        self._chronicle = chronicle
        self._every = every
        self._per_thread = per_thread
        self._wrong: list[str] = []
        #: Searches by metadata that missed threads: their index is looked through by verify() alone.
        self._missed: list[str] = []
        self._said: list[str] = []
        self._heads: Moment = {}
        self._read = 0

    def verdict(self, writes: bool) -> Verdict:
        for name in sorted({*self._listed(), *self._chronicle.last}):
            self._trying(name, self._thread)
        if self._heads == self._chronicle.last:
            self._trying("searching", self._search)
        self._trying("verify", self._verify)
        if writes and self._heads == self._chronicle.last and not self._said:
            for name in self._heads:
                self._trying(name, self._repeat)
        return Verdict(
            self._outcome(), tuple(self._wrong), tuple(self._said), self._read, len(self._chronicle.contents)
        )

    def _outcome(self) -> Outcome:
        if self._missed and not self._said:
            self._wrong += self._missed
        if self._wrong:
            return "misread" if self._said else "silent"
        if self._said:
            return "detected"
        if self._heads == self._chronicle.last:
            return "harmless"
        if self._is_older():
            return "older"
        lost = sorted(self._chronicle.last.items() - self._heads.items())
        self._wrong.append(f"not the heads of any moment: misses {lost}, has {self._heads}")
        return "silent"

    def _is_older(self) -> bool:
        if not self._per_thread:
            return self._heads in self._chronicle.moments
        moments = self._chronicle.moments
        return all(
            any(moment.get(name) == self._heads.get(name) for moment in moments) for name in self._known()
        )

    def _trying(self, what: str, call: Any) -> None:
        try:
            call(what)
        except EverthreadError as error:
            self._said.append(f"{what}: {_short(error)}")

    def _listed(self) -> list[str]:
        found: list[str] = []
        try:
            found += (info.name for info in self._store.threads())
        except EverthreadError as error:
            self._said.append(f"listing: {_short(error)}")
        self._wrong += (f"there is no thread {name!r}" for name in found if name not in self._known())
        return found

    def _known(self) -> set[str]:
        return {name for moment in self._chronicle.moments for name in moment}

    def _thread(self, name: str) -> None:
        thread = self._store.thread(name)
        head = thread.head
        if head is None or name not in self._known():
            return
        recovered = thread.recovered
        if recovered is not None:
            self._said.append(f"{name}: recovered: {_short(recovered)}")
        self._compare(f"{name} {head.id}", head.id, thread)
        ids = []
        try:
            for version in thread.history(limit=None):
                ids.append(version.id)
                if len(ids) % self._every == 0:
                    self._version(thread, version)
        finally:
            known = self._chronicle.pasts.get(head.id, ())
            if list(known[: len(ids)]) != ids:
                at = next(i for i, found in enumerate(ids) if i >= len(known) or known[i] != found)
                self._wrong.append(f"{name}: its history has {ids[at]} in place of {known[at : at + 1]}")
        if len(ids) < len(known) and recovered is None:
            self._wrong.append(f"{name}: only {len(ids)} versions of {len(known)}")
        if recovered is None:
            self._heads[name] = head.id

    def _version(self, thread: Any, version: Any) -> None:
        try:
            self._compare(f"{thread.name} at {version.id}", version.id, thread.at(version))
        except EverthreadError as error:
            self._said.append(f"{thread.name} at {version.seq}: {_short(error)}")

    def _compare(self, where: str, version_id: str, view: Any) -> None:
        wanted = self._chronicle.contents.get(version_id)
        if wanted is None:
            self._wrong.append(f"{where}: there never was such a version")
        elif digest(view) != wanted:
            self._wrong.append(f"{where}: not what was committed")
        else:
            self._read += 1

    def _search(self, what: str) -> None:
        for metadata, wanted in self._chronicle.searches:
            found = [info.name for info in self._store.threads(metadata=metadata)]
            if found != wanted:
                problems = self._missed if set(found) < set(wanted) else self._wrong
                problems.append(f"searching for {metadata} finds {found} instead of {wanted}")

    def _verify(self, what: str) -> None:
        report = self._store.verify()
        self._said += (f"verify: {_short(damage)}" for damage in report.damage[:3])

    def _repeat(self, name: str) -> None:
        """What was done must not be done again."""
        for key, wanted in self._chronicle.keys.get(name, {}).items():
            version = self._store.thread(name).commit(key=key)
            if version is None or version.id != wanted:
                self._wrong.append(f"{name}: the key {key!r} made another version")
        for key, result in self._chronicle.steps.get(name, {}).items():
            with self._store.thread(name).step(key) as step:
                if not step.done or step.result != result:
                    self._wrong.append(f"{name}: the step {key!r} isn't done")


class Salvaged(msgspec.Struct, frozen=True):
    """Of ``undamaged`` versions, ``kept`` came over."""

    kept: int
    undamaged: int


def salvaged(damaged: str, saved: str, chronicle: Chronicle, **options: Any) -> Salvaged:
    """How much of the store at ``damaged`` came over into the one at ``saved``.

    A version counts as damaged if ``verify()`` of the damaged store names it; where that store can't even be
    opened, none does. Versions are told by their labels, so that a salvaged store may number them anew and
    put them elsewhere; those without one aren't counted.
    """
    reachable = {version for head in chronicle.last.values() for version in chronicle.pasts[head]}
    hit = _named_as_damaged(damaged, chronicle, options)
    wanted = [chronicle.labels[version] for version in reachable - hit if version in chronicle.labels]
    found: set[str | None] = set()
    with open_store(saved, **options) as store:
        for info in store.threads():
            found.update(version.label for version in store.thread(info.name).history(limit=None))
    return Salvaged(sum(label in found for label in wanted), len(wanted))


def _named_as_damaged(url: str, chronicle: Chronicle, options: dict[str, Any]) -> set[str]:
    try:
        with open_store(url, **options) as store:
            damage = [found for found in store.verify().damage if not found.derived]
    except EverthreadError:
        return set()
    hit: set[str] = set()
    for name, head in chronicle.last.items():
        for found in damage:
            if found.thread == name:
                past = chronicle.pasts[head]
                hit.update(v for v in past if found.first <= int(v.partition("-")[0]) <= found.last)
    return hit


def _short(problem: object) -> str:
    return f"{type(problem).__name__}: {problem}"[:300]
