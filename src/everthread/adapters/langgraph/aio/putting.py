"""Storing a checkpoint: only what differs from the one that it follows."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from everthread.adapters.langgraph.aio.lane import AsyncLane, find_checkpoint, find_place
from everthread.adapters.langgraph.aio.staging import Staging
from everthread.adapters.langgraph.notes import Place, branch_note, checkpoint_note, note_of
from everthread.adapters.langgraph.values import Values
from everthread.errors import ConflictError, ThreadDeletedError
from everthread.threads.aio.keys import commit_under, rewind_noted
from everthread.threads.colours import pause_async

if TYPE_CHECKING:
    from everthread.threads.aio.thread import AsyncThread
    from everthread.versions import Version

#: How often a checkpoint is tried again because writers of other branches were first.
_TRIES: Final = 200
_PAUSE_S: Final = 0.005


class Refused(Exception):  # noqa: N818 - a signal inside this adapter, callers see its cause
    """The checkpoint must not be stored, and trying again won't help."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Put:
    """One checkpoint on its way into a lane."""

    def __init__(
        self,
        lane: AsyncLane,
        values: Values,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
        parent: str | None,
        *,
        exclusive: bool,
        strict: bool,
    ) -> None:
        self._lane = lane
        self._values = values
        self._checkpoint = checkpoint
        self._metadata = values.pack_fields(dict(metadata))
        self._loop = metadata.get("source") == "loop"
        self._new_versions = new_versions
        self._parent = parent
        self._exclusive = exclusive
        self._strict = strict

    async def run(self, *, allow_orphan: bool) -> bool:
        """Store it, durably. False, and nothing is changed, if its parent isn't there and must be.

        Raises :class:`ConflictError` if it may be the only one that follows its parent, and isn't.
        """
        for attempt in range(_TRIES):
            thread = await self._lane.handle()
            try:
                return await self._try(thread, allow_orphan)
            except Refused as refused:
                await self._lane.discard()
                raise refused.error from None
            except ThreadDeletedError:
                self._lane.forget()
                if self._parent is not None:
                    raise
            except ConflictError:
                await self._lane.discard()
                await self._lane.newest()
                if attempt:
                    await pause_async(random.uniform(0, _PAUSE_S))  # noqa: S311 - no secret
            except BaseException:
                await self._lane.discard()
                raise
        raise ConflictError(
            f"others wrote to {self._lane.name!r} all the time, {_TRIES} times in a row; try again",
            expected=None,
            actual=None,
        )

    async def _try(self, thread: AsyncThread, allow_orphan: bool) -> bool:
        lane, checkpoint_id, parent = self._lane, str(self._checkpoint["id"]), self._parent
        place = await find_place(thread)
        if place.standing is None or place.standing != parent:
            # Not where this lane left it, or a first look: see what others did.
            thread = await lane.newest()
            place = await find_place(thread)
        related = parent is not None and place.standing == parent
        if parent is not None and not related:
            version = await find_checkpoint(thread, parent)
            if version is not None:
                await self._branch(thread, version, place)
                related = True
            elif not allow_orphan:
                return False
        memory = lane.memory
        staging = Staging(
            thread,
            self._values,
            memory.shadow(parent if related else place.standing),
            touched=memory.touched(parent) if related else None,
            strict=self._strict or (self._loop and memory.touched(parent) is None),
        )
        shadow = await staging.run(self._checkpoint, self._new_versions, related=related)
        note = checkpoint_note(checkpoint_id, parent, self._metadata, place)
        shadow.version_id = (await commit_under(thread, checkpoint_id, note)).id
        memory.keep(checkpoint_id, shadow)
        memory.let_go(parent)
        return True

    async def _branch(self, thread: AsyncThread, version: Version, place: Place) -> None:
        """Go back to the parent, which isn't where the thread stands."""
        parent = self._parent or ""
        if self._exclusive and not self._lane.memory.was_named(parent):
            rival = await _child_of(thread, version, parent, str(self._checkpoint["id"]))
            if rival is not None:
                raise Refused(
                    ConflictError(
                        f"another run went on from the checkpoint {parent} of {self._lane.name!r} meanwhile "
                        f"and stored {rival.key}; invoke the graph again to go on from there, or name the "
                        "checkpoint in the config to branch off",
                        expected=version,
                        actual=rival,
                    )
                )
        await rewind_noted(thread, version, branch_note(parent, place))


async def _child_of(thread: AsyncThread, version: Version, parent: str, own: str) -> Version | None:
    """A checkpoint after ``version`` that follows the same parent."""
    async for later in thread.history(limit=None):
        if later.seq <= version.seq:
            return None
        note = note_of(later)
        if note is not None and later.key is not None and later.key != own and note.get("parent") == parent:
            return later
    return None
