"""``everthread log``, and how versions are told to programs."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import Invocation
from everthread.cli.errors import CORRUPT
from everthread.cli.options import (
    complete_thread,
    example,
    existing,
    find_version,
    pass_invocation,
    shared_options,
)
from everthread.cli.outline import bookkeeping
from everthread.cli.output import note, records
from everthread.errors import EverthreadError, InvalidNameError, ThreadNotFoundError

if TYPE_CHECKING:
    from everthread.history.diff import Diff
    from everthread.store import Store
    from everthread.threads.sync.past import Past
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version

VERSION_COLUMNS = (
    "seq",
    "id",
    "parent",
    "at",
    "kind",
    "label",
    "key",
    "step",
    "slot",
    "source",
    "metadata",
    "expires_at",
    "forks",
    "summary",
    "files",
)
thread_argument = click.argument("thread", shell_complete=complete_thread)


def version_data(version: Version) -> dict[str, Any]:
    """A version as programs get it."""
    return {
        "seq": version.seq,
        "id": version.id,
        "parent": version.parent,
        "at": version.at,
        "kind": version.kind,
        "label": version.label,
        "key": version.key,
        "step": version.step,
        "slot": version.slot,
        "source": version.source,
        "metadata": version.metadata,
        "expires_at": version.expires_at,
    }


def recovered_data(thread: Thread) -> dict[str, Any] | None:
    """What of the newest versions can't be read, as programs get it."""
    found = thread.recovered
    if found is None:
        return None
    return {"version": found.version.seq, "lost": [found.first, found.last], "reasons": found.reasons}


def tell_denied(thread: Thread) -> None:
    """Say that no effects are made in a thread, if it is a fork that denies them."""
    if thread.effects == "deny":
        note("a fork for trying things out: calls that have effects are refused in it")


def end_if_damaged(thread: Thread) -> None:
    """End with 6 if what was shown isn't the newest, which is damaged; call.store() says so in the end."""
    if thread.recovered is not None:
        raise click.exceptions.Exit(CORRUPT)


#: What adapters put before the names of their threads (docs/adapters/one-thread.md).
PREFIXES = ("langgraph/", "pydantic_ai/", "adk/session/", "claude/", "crewai/")


def found(store: Store, name: str) -> Thread:
    """The thread of this name, or the one that an adapter keeps under it. Raises as :func:`existing`."""
    if store.thread(name).head is None:
        there = [prefix + name for prefix in PREFIXES if _is_there(store, prefix + name)]
        if len(there) == 1:
            return store.thread(there[0])
        if there:
            raise ThreadNotFoundError(f"{name!r} may be {' or '.join(map(repr, there))}: name one of them")
    return existing(store, name)


def _is_there(store: Store, name: str) -> bool:
    # With what an adapter puts before it a long name may be too long for any thread.
    with suppress(InvalidNameError):
        return store.thread(name).head is not None
    return False


@click.command(
    epilog=example("log invoice-bot", "log invoice-bot --limit 100", "log invoice-bot --before 40")
)
@thread_argument
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 10**9), help="How many versions at most."
)
@click.option("--before", metavar="VERSION", help="Only versions before this one.")
@click.option("--changes/--no-changes", default=None, help="What each changed.  [default: for people]")
@click.option("--forks", is_flag=True, help="Look for forks among all threads, however many there are.")
@shared_options
@pass_invocation
def log(
    call: Invocation, thread: str, limit: int, before: str | None, changes: bool | None, forks: bool
) -> None:
    """The versions of THREAD as a graph, newest first.

    What a rewind left behind stands on a branch of its own; ⑂ shows where the thread was forked.
    """
    from everthread.cli.family import family

    with call.store() as store:
        handle = found(store, thread)
        thread = handle.name
        below = find_version(handle, before) if before is not None else None
        versions = list(islice(handle.history(limit=None, before=below), limit + 1))
        more, versions = len(versions) > limit, versions[:limit]
        relatives = family(handle, everything=forks)
        wanted = call.output.for_people if changes is None else changes
        changed = _changes(handle, versions) if wanted else {}
        summaries = {seq: found.summary(but=bookkeeping) for seq, found in changed.items()}
        data = {
            "thread": thread,
            "versions": [
                {
                    **version_data(each),
                    "forks": relatives.forks_at(each.seq),
                    "summary": summaries.get(each.seq),
                    "files": _file_counts(changed.get(each.seq)),
                }
                for each in versions
            ],
            "more": more,
            "forked_from": relatives.source and relatives.source._asdict(),
            "forks": [fork._asdict() for fork in relatives.forks],
            "forks_complete": relatives.complete,
            "effects": handle.effects,
            "recovered": recovered_data(handle),
        }

        def text() -> None:
            from everthread.cli.render import draw_log

            draw_log(versions, summaries, relatives, time.time_ns() // 1000)
            tell_denied(handle)
            if more:
                note(f"… there are older ones: --before {versions[-1].seq}, or a larger --limit")
            elif versions and versions[-1].seq > 1:
                note("what came before was pruned")
            if not relatives.complete:
                note("there are so many threads that not all were looked through for forks: --forks does")

        call.output.answer("log", data, text, records("versions", VERSION_COLUMNS))
        end_if_damaged(handle)


def _file_counts(found: Diff | None) -> dict[str, int] | None:
    return None if found is None or found.files is None else found.files.counts


def _changes(thread: Thread, versions: list[Version]) -> dict[int, Diff]:
    """What each version changed, in document, logs and files. Reads every one of them."""
    from everthread.cli.diff import diff_with_files

    found: dict[int, Diff] = {}
    newer: Past | None = None
    below = thread.history(limit=1, before=versions[-1]) if versions else ()
    for version in (*versions, *below):
        try:
            past = thread.at(version)
        except EverthreadError:
            # Damaged, or pruned: nobody can tell.
            newer = None
            continue
        if newer is not None:
            found[newer.version.seq], _ = diff_with_files(thread, past, newer)
        newer = past
    if newer is not None and newer.version.seq == 1:
        found[1], _ = diff_with_files(thread, None, newer)
    return found
