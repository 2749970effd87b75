"""Checking a whole store against itself, and against heads that were signed and kept elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from everthread.codec.records import unframe
from everthread.errors import EverthreadError, StateCorruptedError, UsageError
from everthread.history.chain import SignedHead
from everthread.stores.contract import SEAL_SEQ, Line
from everthread.threads.aio.damage import newest_seq
from everthread.threads.aio.examining import Examination
from everthread.threads.aio.journals import JOURNAL, in_words, is_companion, told_as
from everthread.threads.aio.redactions import Redactions, read_redactions, redactions_space
from everthread.threads.aio.sealed_values import CanOpen, SealedValues
from everthread.threads.aio.touching import Touched
from everthread.threads.aio.unfinished import Work, cut_short
from everthread.threads.reports import Affected, Damage, Progress, VerifyReport, What
from everthread.threads.tombstones import AwayError

if TYPE_CHECKING:
    from everthread.threads.aio.reader import Reader

_STORE = "(the whole store)"
#: What seems damaged is looked at again: a fold by somebody else meanwhile looks like it.
_LOOKS = 8
_TOLD_EVERY = 256
_PAGE = 200


class _Telling:
    """Tells how far it is, not more often than is worth it."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._settled = self._told = 0

    def __call__(self, versions: int) -> None:
        done = self._settled + versions
        if done - self._told >= _TOLD_EVERY:
            self._tell(done)

    def settle(self, versions: int) -> None:
        """So many versions are done with."""
        self._settled = versions
        self._tell(versions)

    def _tell(self, done: int) -> None:
        self._told = done
        self._total = max(self._total, done)
        self._progress(done, self._total)


class Verifier:
    """Reads everything once and recomputes what can be recomputed. Changes nothing."""

    def __init__(
        self,
        reader: Reader,
        space: str,
        can_open: CanOpen,
        anchors: Iterable[SignedHead] = (),
        public_key: Any = None,
    ) -> None:
        self._reader = reader
        self._can_open = can_open
        self._backend = reader.backend
        self._space = space
        self._anchors = list(anchors)
        self._public_key = public_key
        self._store: list[Damage] = []
        self._found: list[tuple[Line, Damage]] = []
        self._confirmed: set[tuple[str, int, bytes]] = set()
        self._newest: dict[str, int] = {}
        #: Lines whose source can't be read where they were forked from it.
        self._orphaned: set[int] = set()
        self._redacted = 0
        self._recorded: dict[str, Redactions] = {}
        if self._anchors and public_key is None:
            raise UsageError("anchors are checked against a key you trust: pass public_key as well")

    async def run(self, progress: Progress | None, clock: Callable[[], int]) -> VerifyReport:
        threads = companions = versions = 0
        spaces = {self._space: None}
        await self._check_engine()
        telling = _Telling(progress, await self._count()) if progress is not None else None
        try:
            async for line in self._backend.every_line():
                if not line.deleted:
                    threads += not is_companion(line)
                    companions += is_companion(line)
                spaces[line.space.partition("\0")[0]] = None
                versions += await self._line(line, telling)
                if telling is not None:
                    telling.settle(versions)
        except AwayError:
            # Somewhere else: no verdict can be given.
            raise
        except EverthreadError as error:
            self._store.append(Damage(_STORE, 0, 0, str(error), "store"))
        begun: list[tuple[str, Work]] = []
        try:
            for space in spaces:
                await self._events(space)
            begun = await cut_short(self._backend, self._space, clock)
        except EverthreadError as error:
            self._store.append(Damage(_STORE, 0, 0, str(error), "store"))
        damage = [*self._store, *await self._touched()]
        for anchor in self._anchors:
            damage.extend(self._anchored(anchor))
        told = tuple(str(work) for _, work in begun)
        return VerifyReport(threads, versions, tuple(damage), self._redacted, companions, told)

    async def _events(self, space: str) -> None:
        """Personal values that events refer to; the events themselves are the engine's to check."""
        after: str | None = None
        while page := await self._backend.streams(space, "", after, _PAGE):
            for stream, _ in page:

                def note(first: int, last: int, problem: object, what: What, stream: str = stream) -> None:
                    self._store.append(Damage(f"events of {stream}", first, last, str(problem), what))

                sealed, seq = SealedValues(self._backend, self._can_open, note), 0
                while events := await self._backend.events(space, stream, seq, _PAGE):
                    for event in events:
                        with suppress(StateCorruptedError):
                            await sealed.look(event.seq, event.seq, (unframe(event.body, "an event"),))
                    seq = events[-1].seq
            after = page[-1][0]

    async def _check_engine(self) -> None:
        try:
            problems: Sequence[str] = await self._backend.check()
        except EverthreadError as error:
            problems = [str(error)]
        self._store.extend(Damage(_STORE, 0, 0, problem, "store") for problem in problems)

    async def _count(self) -> int:
        """How many versions there are to look at, about."""
        total = 0
        try:
            async for line in self._backend.every_line():
                if not line.deleted:
                    total += await newest_seq(self._backend, line) - line.parent_seq
        except EverthreadError:
            # The same will be met, and told, while verifying.
            pass
        return total

    async def _line(self, line: Line, tick: Callable[[int], None] | None) -> int:
        """Check one line; how many versions were looked at."""
        anchored: dict[int, set[bytes]] = {}
        if line.space == self._space:
            for anchor in self._anchors:
                if anchor.thread == line.name:
                    anchored.setdefault(anchor.seq, set()).add(anchor.hash)
        known = await self._redactions(line)
        examined = Examination(self._reader, line, self._can_open, anchored, tick, known)
        before: list[Damage] = []
        for look in range(_LOOKS):
            try:
                if line.deleted and not await self._backend.scan(line.id, SEAL_SEQ - 1, 1):
                    # Deleted and purged: nothing is left to check, nor perhaps what it was forked from.
                    return 0
                await examined.run()
            except AwayError:
                raise
            except EverthreadError as error:
                examined.damage.append(Damage(line.name, 0, 0, str(error), "thread"))
            if not examined.damage or examined.damage == before or look + 1 == _LOOKS:
                break
            before = examined.damage
            now = await self._now(line)
            if now is None or now.deleted != line.deleted:
                # Deleted meanwhile.
                return 0
            known = await self._redactions(line, again=True)
            examined = Examination(self._reader, line, self._can_open, anchored, None, known)
        self._found.extend((line, damage) for damage in examined.damage)
        if examined.orphaned:
            self._orphaned.add(line.id)
        self._redacted += examined.redacted
        self._confirmed.update((line.name, *entry) for entry in examined.confirmed)
        if line.space == self._space and not line.deleted and anchored:
            self._newest[line.name] = examined.newest
        return examined.versions

    async def _redactions(self, line: Line, *, again: bool = False) -> Redactions:
        """What was redacted in the namespace of a line, as the store has recorded it."""
        space = redactions_space(line.space)
        if space not in self._recorded or again:
            try:
                self._recorded[space] = await read_redactions(self._reader, line.space)
            except EverthreadError:
                # The record is a thread as well: what is wrong with it is told there.
                self._recorded[space] = {}
        return self._recorded[space]

    async def _now(self, line: Line) -> Line | None:
        try:
            return await self._backend.line(line.id)
        except EverthreadError:
            return line

    async def _touched(self) -> list[Damage]:
        """The damage of all lines, with what each touches."""
        roots = {line.root for line, damage in self._found if damage.what in ("version", "items")}
        families = {root: Touched(self._reader) for root in roots}
        if roots:
            try:
                async for line in self._backend.every_line():
                    if line.root in families:
                        await families[line.root].add(line)
            except EverthreadError as error:
                self._store.append(Damage(_STORE, 0, 0, str(error), "store"))
        found = []
        for line, damage in self._found:
            family = families.get(line.root)
            if family is not None and self._is_repeated(line, damage) and family.hurt_by_source(line):
                # Told where the damage is, which touches this line.
                continue
            affected: list[Affected] = []
            if damage.what in ("version", "items"):
                for each, first, last in families[line.root].by(line, damage):
                    affected.append(Affected(*await self._called(each, first, last)))
            name, first, last, beside = await self._called(line, damage.first, damage.last)
            problem = await in_words(self._backend, damage.problem) if beside else damage.problem
            found.append(Damage(name, first, last, problem, damage.what, tuple(affected), beside))
        return found

    def _is_repeated(self, line: Line, damage: Damage) -> bool:
        """Whether a journal that a fork took along only says that its source can't be read."""
        at_source = damage.what == "thread" and damage.first == line.parent_seq
        return at_source and is_companion(line) and line.id in self._orphaned

    async def _called(self, line: Line, first: int, last: int) -> tuple[str, int, int, str]:
        """Versions of a line as a report names them."""
        name, kind = await told_as(self._backend, line)
        deleted = " (deleted)" if line.deleted else ""
        return name + deleted, first, last, kind if kind == JOURNAL else ""

    def _anchored(self, anchor: SignedHead) -> list[Damage]:
        """What a signed head shows to be wrong."""
        if not anchor.verify(self._public_key):
            problem = "this head wasn't signed with that key"
        elif (anchor.thread, anchor.seq, anchor.hash) in self._confirmed:
            return []
        elif anchor.thread not in self._newest:
            problem = "there is no such thread any more: it was deleted, or taken out"
        elif self._newest[anchor.thread] < anchor.seq:
            newest = self._newest[anchor.thread]
            problem = f"history was cut off: version {anchor.seq} was signed, version {newest} is the newest"
        else:
            problem = f"history was rewritten: {anchor.version_id} was signed and isn't version {anchor.seq}"
        return [Damage(anchor.thread, anchor.seq, anchor.seq, problem, "anchor")]
