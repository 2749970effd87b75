"""The report for a new run, read from a session's records: see ``sessions/resume`` for what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from everthread.codec.schema import CURRENT_SCHEMA_VERSION, VERSION_FIELD
from everthread.errors import DamageError
from everthread.sessions.resume import (
    MAX_AGE_S,
    RECORDS_LOST,
    ResumeReport,
    check_context,
    sound_items,
    working_part,
)
from everthread.stores.offload import run_in_thread
from everthread.threads.twins import ASYNC
from everthread.verifiers.specs import AllowCommands, permissions
from everthread.working.items import CONTEXT_ITEMS, check_version

if TYPE_CHECKING:
    from everthread.sessions.aio.status import AsyncSessionRecords


async def readable(problems: list[str], part: Callable[[], Any]) -> list[Any]:
    """A part of the state; one that is damaged is reported and doesn't keep the others from being read."""
    try:
        found: Iterable[Any] = part()
        if ASYNC and isawaitable(found):
            found = await found
        return list(found)
    except DamageError as error:
        problems.append(str(error))
        return []


async def resume_report(
    records: AsyncSessionRecords,
    *,
    now_us: int,
    max_age_s: float | None = MAX_AGE_S,
    allow_commands: AllowCommands = False,
    allow_network: bool = True,
) -> ResumeReport:
    """The report on what ``records`` show. Writes nothing and reads documents and tails only.

    ``max_age_s``: when a fact without a verifier counts as stale; None for never. Stored commands are run
    only as far as ``allow_commands`` says. Parts that are damaged are named in ``problems``. Raises
    :class:`SchemaVersionError` for a state that newer code wrote.
    """
    allowed = permissions(allow_commands, allow_network)
    problems: list[str] = []
    if (lost := records.thread.recovered) is not None:
        which = f"version {lost.last}" if lost.first == lost.last else f"versions {lost.first}–{lost.last}"
        problems.append(f"{which}, the newest; it stands on {lost.version}: {'; '.join(lost.reasons)}")
    found = await _session_part(records, problems)
    document = records.thread.state.plain()
    check_version(document.get(VERSION_FIELD), CURRENT_SCHEMA_VERSION)
    found |= working_part(document, problems)
    items = sound_items(problems, document, CONTEXT_ITEMS)
    check = partial(check_context, items, now_us=now_us, max_age_s=max_age_s, allowed=allowed)
    if ASYNC and any(item.verify is not None for item in items):
        # Files, commands and hosts are looked at, which may take long: on a thread of its own.
        found["facts"] = await run_in_thread(check)
    else:
        found["facts"] = check()
    return ResumeReport(
        thread=records.name,
        version=None if records.head is None else records.head.seq,
        made_us=now_us,
        problems=tuple(problems),
        **found,
    )


async def _session_part(records: AsyncSessionRecords, problems: list[str]) -> dict[str, Any]:
    tasks = await readable(problems, records.tasks.all)
    if records.losses is not None:
        problems.append(
            f"{RECORDS_LOST} ({records.losses.why}): an effect that isn't known here may have happened"
        )
    return {
        "losses": None if records.losses is None else records.losses.why,
        "status": records.status,
        "run": records.last_run,
        "heard_us": heard_us(records),
        "turns": await records.turns,
        "in_flight": tuple(await readable(problems, records.open_effects)),
        "decisions": tuple(await readable(problems, records.open_decisions)),
        "ready": tuple(await readable(problems, records.tasks.ready)),
        "blocked": tuple(await readable(problems, records.tasks.blocked)),
        "in_progress": tuple(task for task in tasks if task.status == "in_progress"),
    }


def heard_us(records: AsyncSessionRecords) -> int | None:
    """When the last run ended or, if it didn't say, was last heard of."""
    run = records.last_run
    if run is None:
        return None
    if run.ended_us is not None:
        return run.ended_us
    heard = records.heartbeat_us if run.heard_us is None else run.heard_us
    return max(run.started_us, heard or 0)
