"""What a thread holds since the version that a workflow believes in: pure rules over versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.engines.pointers import Execution, ThreadRef, number_of
from everthread.versions import StepKey, Version

#: In the metadata of a version: the run that made it, and the one that had scheduled it, if that is another.
RUN, SCHEDULER = "run", "scheduler"
#: In those of a rewind: whose it is, and the version that it was made from, if the workflow itself asked for
#: it.
CLAIM, LEFT = "claim", "left"
#: In those of a fence, and of what an attempt above the first has recorded; with the activity that it was an
#: attempt of, and when the engine handed that out, where the engine names activities.
ATTEMPT, TASK, STARTED = "attempt", "task", "started"
#: In those of a step: the effects that it skipped, each with the execution that had made it.
SKIPPED = "skipped"
#: In those of a thread's first version: what may begin it anew.
OWNER = "owner"
#: In those of engines that number their steps: the number, and whose claim it was made under.
NUMBER, MADE_BY = "number", "made_by"


@dataclass(frozen=True)
class Place:
    """A step, where it runs, and the version that it was scheduled on."""

    key: StepKey
    slot: int | None
    pointer: str | None
    #: The run whose code scheduled it.
    scheduler: str
    where: Execution
    #: The execution whose effects are counted apart, or "".
    scope: str = ""

    @property
    def claim(self) -> str:
        return self.where.claim or self.where.run

    @property
    def is_early(self) -> bool:
        """Whether it was scheduled before the point that a run was taken back to: siblings that were recorded
        by then are done in the engine's history, and won't run again."""
        return self.slot is not None and (self.scheduler != self.where.run or self.where.orderly)

    def metadata(self, attempt: int) -> dict[str, Any]:
        """Return what the versions carry that this attempt at the step makes."""
        made: dict[str, Any] = {RUN: self.where.run}
        if self.scheduler != self.where.run:
            made[SCHEDULER] = self.scheduler
        if attempt > 1:
            made[ATTEMPT] = attempt
            if self.where.task:
                made |= {TASK: self.where.task, STARTED: self.where.started}
        if self.where.number:
            made |= {NUMBER: self.where.number, MADE_BY: self.claim}
        return made

    def made(self, version: Version) -> bool:
        """Return True if this very step of this claim recorded the version."""
        if (version.step, version.slot) != (self.key, self.slot) or version.kind == "fence":
            return False
        return bool(version.metadata.get(MADE_BY, _run_of(version)) == self.claim)

    def fits(self, version: Version) -> bool:
        """Whether a version after the pointer may stay. What no engine's step has made always may."""
        run = _run_of(version)
        if run is None or self._is_sibling(version) or self._is_in_history(version):
            return True
        return run == self.where.run and (not self.where.orderly or version.step == self.key)

    def _is_sibling(self, version: Version) -> bool:
        # Whichever run has made it. If another one has scheduled it, it may have been told something else.
        return (
            self.is_early
            and (version.step, version.slot is None) == (self.key, False)
            and version.metadata.get(SCHEDULER, _run_of(version)) == self.scheduler
        )

    def _is_in_history(self, version: Version) -> bool:
        """Whether the engine knows of it, or will, because this claim has made it. Only of numbered steps."""
        if not self.where.number or version.step is None or version.step[0] != self.key[0]:
            return False
        made = version.metadata
        return made.get(MADE_BY) == self.claim or made.get(NUMBER) in self.where.recorded

    def was_taken_back(self, versions: Sequence[Version]) -> bool:
        """Of the versions since the pointer, newest first: whether they hold this very step although the
        engine has gone back behind it. They do where it couldn't be left out without siblings that stay."""
        is_behind = False
        for version in versions:
            is_behind = is_behind or (version.kind == "rewind" and CLAIM in version.metadata)
            if (version.step, version.slot) == (self.key, self.slot) and version.kind != "fence":
                is_lost = is_behind or _run_of(version) != self.where.run
                return bool(self.where.number) and is_lost and not self._is_in_history(version)
        return False

    def attempts_before(self, versions: Sequence[Version]) -> int:
        """Return the highest attempt at this very step that another run has begun, or an earlier activity of
        this run, which has failed by now: those of this activity come after it."""
        return max(
            (
                _attempt_of(version)
                for version in versions
                if version.kind == "fence"
                and (version.step, version.slot) == (self.key, self.slot)
                and (_run_of(version) != self.where.run or self._is_earlier(version.metadata))
            ),
            default=0,
        )

    def _is_earlier(self, made: Mapping[str, Any]) -> bool:
        """Return True if an activity before this one made a version, by its metadata."""
        return bool(made.get(TASK, "") != self.where.task and made.get(STARTED, 0.0) < self.where.started)

    def furthest(self, versions: Sequence[Version]) -> str | None:
        """Of the versions since the pointer, oldest first, those left behind included: the last one that
        holds nothing but siblings."""
        if self.where.number and not any(
            self._is_sibling(version) and self._is_in_history(version) for version in versions
        ):
            # All of them are done anew.
            return self.pointer
        siblings = {number_of(self.pointer): 0}
        best, most = self.pointer, 0
        for version in versions:
            before = number_of(version.source) if version.kind == "rewind" else version.seq - 1
            if before not in siblings:
                continue
            count = siblings[before]
            if _run_of(version) is not None:
                if not self._is_sibling(version):
                    continue
                count += 1
            siblings[version.seq] = count
            if count >= most:
                best, most = version.id, count
        return best


def place_of(ref: ThreadRef, key: Sequence[str | int], slot: int | None, where: Execution) -> Place:
    """The step of this key, as ``ref`` and the engine say. Keys of another workflow's steps are others."""
    origin = where.origin or ref.origin
    scheduler = where.scheduler or ref.run or where.run
    return Place((origin, *key), slot, ref.version, scheduler, where, ref.scope)


def _run_of(version: Version) -> str | None:
    """The run whose step a version is; ``None`` for what isn't an engine's."""
    return version.metadata.get(RUN) if version.step is not None else None


def _attempt_of(version: Version) -> int:
    found = version.metadata.get(ATTEMPT, 1)
    return found if isinstance(found, int) else 1
