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
        check_several(rejected, "rejected", "the options that were not taken")
        decision_id = self._thread.new_id() if key is None else _id_of(key)
        stored: dict[str, Any] = {
            "decision_id": decision_id,
            "decision": check_text(decision, "the decision", "decision"),
            "rationale": _words(rationale, "rationale"),
            "planned_action": _words(planned_action, "planned_action"),
            "rejected": [check_text(option, "a rejected option", "rejected") for option in rejected],
            "at_us": self._thread.now_us(),
            "run": self._run_id,
            "agent": self._agent,
        }
        if effect is not None:
            stored["effect"] = check_name(effect, "effect")
        if key is not None:
            # By this id it is found in the log, also once it has an outcome.
            stored["id"] = decision_id
            record = await self._decide_once(decision_id, stored)
        else:
            async with self._thread.writing():
                await self._put(decision_id, stored)
            record = decision_of(stored)
        return AsyncPendingDecision(record, self.settle)

    async def _put(self, decision_id: str, stored: dict[str, Any]) -> None:
        stored["after"] = await self._newest_message()
        own_part(self._thread.state).setdefault(OPEN, {})[decision_id] = stored
        self._thread.log(LOG).append(stored)

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
                            await self._put(decision_id, stored)
                    break
                except ConflictError:
                    if not left:
                        raise
            if at is None:
                return decision_of(stored)
            (known,) = await thread.log(LOG).read(at, at + 1)
            if decision_id in open_decisions(thread):
                return await revealing(thread.core, decision_of, known)
            return await self._settled_as(decision_id)

    async def close_for(self, effect: str) -> None:
        """Record the outcome of the decisions that this effect, which is done, carried out."""
        for decision_id, stored in open_decisions(self._thread).items():
            if stored.get("effect") == effect:
                await self.settle(decision_id, EFFECT_DONE)

    async def _newest_message(self) -> Any:
        """The id of the message that a decision follows; ``None`` if there is none, or it has no id."""
        newest = await self._thread.messages.read(-1)
        return newest[0].get("id") if newest and isinstance(newest[0], Mapping) else None

    async def settle(self, decision_id: str, outcome: Any, failed: bool = False) -> DecisionRecord:
        """Record the outcome. The same one again changes nothing; another one is refused."""
        check_name(decision_id, "the id of a decision")
        async with self._thread.writing():
            stored = open_decisions(self._thread).get(decision_id)
            if stored is None:
                return await self._settled_before(decision_id, outcome)
            ended = {
                "about": decision_id,
                "outcome": outcome,
                "failed": failed,
                "at_us": self._thread.now_us(),
            }
            self._thread.log(LOG).append(ended)
            del self._thread.state[OWN][OPEN][decision_id]
        return await revealing(self._thread.core, decision_of, stored, ended)

    async def _settled_before(self, decision_id: str, outcome: Any) -> DecisionRecord:
        known = await self._settled_as(decision_id)
        if known.outcome != outcome:
            raise InvalidStateError(
                f"the outcome of the decision {decision_id!r} is recorded already: {known.outcome!r}"
            )
        return known

    async def _settled_as(self, decision_id: str) -> DecisionRecord:
        for known in await read_decisions(self._thread, len(self._thread.log(LOG))):
            if known.id == decision_id and known.complete:
                return known
        raise InvalidStateError(
            f"there is no decision {decision_id!r}, or it was rewound past; "
            "record what came of it in a new one"
        )


def open_decisions(thread: AsyncThread) -> dict[str, Mapping[str, Any]]:
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


def _id_of(key: str) -> str:
    """Return the id of the decision that is made under ``key``: the same in every process."""
    return sha256(check_name(key, "key").encode()).hexdigest()[:12]


def _words(value: Any, name: str) -> Any:
    if not isinstance(value, str | Personal):
        raise InvalidValueError(f"{name} is text, not {type(value).__name__}", path=name)
    return value
