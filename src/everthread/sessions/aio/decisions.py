"""Write-ahead decisions: durable before they are acted upon.

They belong to the thread, not to the journal: a decision is part of the line of thought, so that a rewind
takes it back, a fork at an older version doesn't know it, and a merge brings both sides' together. What was
really done to the world is the effect ledger's business, and that is never rewound.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from types import TracebackType
from typing import Any, Self

from everthread.arguments import check_name, check_several
from everthread.errors import ConflictError, InvalidStateError, InvalidValueError
from everthread.sessions.aio.fenced_thread import AsyncFencedThread
from everthread.sessions.aio.logs import newest_first, revealing
from everthread.sessions.records import DecisionRecord, decision_of
from everthread.sessions.tasks import OWN, own_part
from everthread.threads.aio.thread import AsyncThread
from everthread.threads.aio.update import AsyncDraft
from everthread.threads.nodes import plain_of
from everthread.threads.twins import AwaitedFace
from everthread.values import Personal, check_text

LOG = "session/decisions"
OPEN = "decisions"
#: The outcome of a decision whose effect is done.
EFFECT_DONE = "done"
_TRIES = 1000


class AsyncPendingDecision(AwaitedFace):
    """A decision that was written down and not acted upon yet.

    As a context manager it records its outcome: ``"done"``, or what :meth:`record` was given, or how it
    failed if the block raises.
    """

    def __init__(
        self, record: DecisionRecord, settle: Callable[[str, Any, bool], Awaitable[DecisionRecord]]
    ) -> None:
        self._record = record
        self._settle = settle

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def decision(self) -> str:
        return self._record.decision

    @property
    def rationale(self) -> str:
        return self._record.rationale

    @property
    def planned_action(self) -> str:
        return self._record.planned_action

    @property
    def rejected(self) -> tuple[str, ...]:
        return self._record.rejected

    @property
    def agent(self) -> str | None:
        return self._record.agent

    @property
    def after(self) -> Any:
        """The id of the message that it followed."""
        return self._record.after

    @property
    def outcome(self) -> Any:
        return self._record.outcome

    @property
    def complete(self) -> bool:
        return self._record.complete

    async def record(self, outcome: Any, *, failed: bool = False) -> None:
        """Record what came of it."""
        self._record = await self._settle(self.id, outcome, failed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.complete:
            return
        if error is None:
            await self.record("done")
        else:
            # Its effect may have closed it before the block failed; what the block raised is raised.
            with suppress(InvalidStateError):
                await self.record(f"failed: {type(error).__name__}", failed=True)

    def __repr__(self) -> str:
        words = "•••" if self._record.personal else repr(self.decision)
        return f"<decision {self.id}: {words}, {'complete' if self.complete else 'pending'}>"


class Decisions:
    """The decisions of a session."""

    def __init__(self, thread: AsyncFencedThread, run_id: str, agent: str | None) -> None:
        self._thread = thread
        self._run_id = run_id
        self._agent = agent

    async def decide(
        self,
        decision: Any,
        rationale: Any,
        planned_action: Any,
        rejected: Iterable[Any],
        key: str | None,
        effect: str | None,
    ) -> AsyncPendingDecision:
        decision_id = _new_id(self._thread) if key is None else _id_of(key)
        stored = _stored(self._thread, decision_id, decision, rationale, planned_action, rejected)
        stored |= {"run": self._run_id, "agent": self._agent}
        if effect is not None:
            stored["effect"] = check_name(effect, "effect")
        if key is not None:
            # By this id it is found in the log, also once it has an outcome.
            stored["id"] = decision_id
            record = await self._decide_once(decision_id, stored)
        else:
            async with self._thread.writing():
                await _put(self._thread, stored)
            record = decision_of(stored)
        return AsyncPendingDecision(record, self.settle)

    async def _decide_once(self, decision_id: str, stored: dict[str, Any]) -> DecisionRecord:
        """Write the decision down unless the thread has it, also if another process does so meanwhile."""
        thread = self._thread
        async with thread.mutex:
            if thread.dirty:
                await thread.save()
            for left in reversed(range(_TRIES)):
                try:
                    async with thread.writing(rebases=False):
                        at = await thread.log(LOG).find(decision_id)
                        if at is None:
                            await _put(thread, stored)
                    break
                except ConflictError:
                    if not left:
                        raise
            if at is None:
                return decision_of(stored)
            (known,) = await thread.log(LOG).read(at, at + 1)
            if decision_id in open_decisions(thread):
                return await revealing(thread.core, decision_of, known)
            return await _settled_as(thread, decision_id)

    async def close_for(self, effect: str) -> None:
        """Record the outcome of the decisions that this effect, which is done, carried out."""
        for decision_id, stored in open_decisions(self._thread).items():
            if stored.get("effect") == effect:
                await self.settle(decision_id, EFFECT_DONE)

    async def settle(self, decision_id: str, outcome: Any, failed: bool = False) -> DecisionRecord:
        """Record the outcome. The same one again changes nothing; another one is refused."""
        check_name(decision_id, "the id of a decision")
        thread, ended = self._thread, _ended(self._thread, decision_id, outcome, failed)
        async with thread.writing():
            stored = _close(thread, ended)
            if stored is None:
                return await _settled_before(thread, decision_id, outcome)
        return await revealing(thread.core, decision_of, stored, ended)


# ── without a session ────────────────────────────────────────────────────────────────────────


async def record_decision(
    thread: AsyncThread, decision: Any, rationale: Any = "", rejected: Iterable[Any] = ()
) -> DecisionRecord:
    """Record a decision that no run made. It takes no lease: a run at work merges it with its own changes."""
    stored = _stored(thread, _new_id(thread), decision, rationale, "", rejected)

    async def change(draft: AsyncDraft) -> None:
        await _put(draft, stored)

    await thread.update(change)
    return await revealing(thread.core, decision_of, stored)


async def record_outcome(
    thread: AsyncThread, decision_id: str, outcome: Any, failed: bool = False
) -> DecisionRecord:
    """Record the outcome of a decision, without a lease. The same one again changes nothing; another one is
    refused with :class:`InvalidStateError`."""
    check_name(decision_id, "the id of a decision")
    ended = _ended(thread, decision_id, outcome, failed)
    stored: Mapping[str, Any] | None = None

    async def change(draft: AsyncDraft) -> None:
        nonlocal stored
        stored = _close(draft, ended)
        if stored is None:
            # Raises unless it is the same outcome: then nothing is changed, and nothing committed.
            await _settled_before(thread, decision_id, outcome)

    await thread.update(change)
    if stored is None:
        return await _settled_as(thread, decision_id)
    return await revealing(thread.core, decision_of, stored, ended)


# ── how they are stored ──────────────────────────────────────────────────────────────────────


def _stored(
    thread: AsyncThread,
    decision_id: str,
    decision: Any,
    rationale: Any,
    planned_action: Any,
    rejected: Iterable[Any],
) -> dict[str, Any]:
    check_several(rejected, "rejected", "the options that were not taken")
    return {
        "decision_id": decision_id,
        "decision": check_text(decision, "the decision", "decision"),
        "rationale": _words(rationale, "rationale"),
        "planned_action": _words(planned_action, "planned_action"),
        "rejected": [check_text(option, "a rejected option", "rejected") for option in rejected],
        "at_us": thread.core.runtime.now_us(),
    }


async def _put(thread: AsyncThread | AsyncDraft, stored: dict[str, Any]) -> None:
    """Add a decision to the log and to the open ones, with the id of the message that it follows: ``None`` if
    there is no message, or it has no id."""
    newest = await thread.messages.read(-1)
    stored["after"] = newest[0].get("id") if newest and isinstance(newest[0], Mapping) else None
    own_part(thread.state).setdefault(OPEN, {})[stored["decision_id"]] = stored
    thread.log(LOG).append(stored)


def _ended(thread: AsyncThread, decision_id: str, outcome: Any, failed: bool) -> dict[str, Any]:
    now_us = thread.core.runtime.now_us()
    return {"about": decision_id, "outcome": outcome, "failed": failed, "at_us": now_us}


def _close(thread: AsyncThread | AsyncDraft, ended: dict[str, Any]) -> Mapping[str, Any] | None:
    """Add the outcome to the log and return its decision; ``None`` if that isn't open."""
    stored = open_decisions(thread).get(ended["about"])
    if stored is not None:
        thread.log(LOG).append(ended)
        del thread.state[OWN][OPEN][ended["about"]]
    return stored


async def _settled_before(thread: AsyncThread, decision_id: str, outcome: Any) -> DecisionRecord:
    known = await _settled_as(thread, decision_id)
    if known.outcome != outcome:
        raise InvalidStateError(
            f"the outcome of the decision {decision_id!r} is recorded already: {known.outcome!r}"
        )
    return known


async def _settled_as(thread: AsyncThread, decision_id: str) -> DecisionRecord:
    for known in await read_decisions(thread, len(thread.log(LOG))):
        if known.id == decision_id and known.complete:
            return known
    raise InvalidStateError(
        f"there is no decision {decision_id!r}, or it was rewound past; record what came of it in a new one"
    )


def open_decisions(thread: AsyncThread | AsyncDraft) -> dict[str, Mapping[str, Any]]:
    """What was decided and has no outcome yet, by id."""
    own = thread.state.get(OWN)
    found = own.get(OPEN) if isinstance(own, Mapping) else None
    plain = plain_of(found)
    if not isinstance(plain, Mapping):
        return {}
    return {id_: one for id_, one in plain.items() if isinstance(one, Mapping)}


def decided_count(thread: AsyncThread) -> int:
    """How many decisions have an outcome: each of these stands in the log twice, the open ones once."""
    return max(0, len(thread.log(LOG)) - len(open_decisions(thread))) // 2


async def read_open_decisions(
    thread: AsyncThread, is_done: Callable[[str], Awaitable[bool]]
) -> list[DecisionRecord]:
    """Return them as records, oldest first, without those whose effect is done: the run that called it may
    have been killed before it recorded the outcome."""
    stored = []
    for one in open_decisions(thread).values():
        effect = one.get("effect")
        if not isinstance(effect, str) or not await is_done(effect):
            stored.append(one)
    found = await revealing(thread.core, lambda: [decision_of(each) for each in stored])
    return sorted(found, key=lambda decision: decision.at_us)


async def read_decisions(thread: AsyncThread, limit: int) -> list[DecisionRecord]:
    """The newest decisions, newest first, each with its outcome if there is one."""
    outcomes: dict[Any, Mapping[str, Any]] = {}
    found: list[tuple[Mapping[str, Any], Mapping[str, Any] | None]] = []
    if limit <= 0:
        return []
    async for item in newest_first(thread.log(LOG)):
        if not isinstance(item, Mapping):
            continue
        if "about" in item:
            outcomes[item["about"]] = item
            continue
        found.append((item, outcomes.get(item.get("decision_id"))))
        if len(found) == limit:
            break
    return await revealing(thread.core, lambda: [decision_of(*each) for each in found])


def _new_id(thread: AsyncThread) -> str:
    """Short, because people and models read it in briefings."""
    return thread.core.runtime.random_bytes(6).hex()


def _id_of(key: str) -> str:
    """Return the id of the decision that is made under ``key``: the same in every process."""
    return sha256(check_name(key, "key").encode()).hexdigest()[:12]


def _words(value: Any, name: str) -> Any:
    if not isinstance(value, str | Personal):
        raise InvalidValueError(f"{name} is text, not {type(value).__name__}", path=name)
    return value
