"""``everthread status``: the threads of a store, those saved last first, and how their last runs stand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from heapq import nlargest
from typing import TYPE_CHECKING, Any

import click

from everthread.arguments import counted
from everthread.cli.context import Invocation
from everthread.cli.errors import CORRUPT, NOTHING, OK
from everthread.cli.family import session_status
from everthread.cli.options import SEALED_MAX, example, pass_invocation, shared_options, unopened_code
from everthread.cli.output import ago, cells, clean, columns_of_terminal, note, pad, painted, records, say
from everthread.errors import DamageError, ThreadNotFoundError
from everthread.maintenance.key_needs import count_keys

if TYPE_CHECKING:
    from everthread.store import Store
    from everthread.versions import ThreadInfo


# What ``everthread status`` tells: the threads of a store. Loads as little as it can: it is typed most.


#: Threads that belong to something else, which shows them.
HIDDEN = ("checkpoint:",)
COLUMNS = ("name", "version", "version_id", "updated_at", "session", "label", "metadata")
#: How many threads at most, if nobody says.
LIMIT = 20
_NAME_WIDTH_MAX, _NAME_WIDTH_MIN = 48, 8
_AGO_WIDTH, _STATE_WIDTH, _LABEL_WIDTH_MAX = 10, 9, 40
_GAP = "  "
_BOLD, _RED, _GREEN, _YELLOW = 1, 31, 32, 33
#: How a session stands whose journal can't be read, or not to its end.
_UNREADABLE = ("damaged", "unknown")
_STATUS_COLOURS = {
    "running": (_GREEN,),
    "waiting_for_input": (_YELLOW,),
    "silent": (_YELLOW,),
    "crashed": (_RED,),
    "failed": (_RED,),
    "damaged": (_RED,),
    "unknown": (_RED,),
}


def overview(call: Invocation, prefix: str, limit: int, everything: bool) -> int:
    """Tell of the threads whose names begin with ``prefix``, those saved last first; the exit code."""
    with call.store() as store:
        total, damage = 0, ""
        spoilt: list[str] = []

        def listed() -> Iterator[ThreadInfo]:
            nonlocal total, damage
            try:
                for info in store.threads(prefix):
                    if everything or not info.name.startswith(HIDDEN):
                        total += 1
                        if info.damaged:
                            spoilt.append(info.name)
                        yield info
            except DamageError as error:
                damage = str(error)

        # However many there are, only so many are kept in memory.
        shown = nlargest(limit, listed(), key=lambda info: info.updated_at_us)
        rows = [_row(store, info) for info in shown]
        needs = count_keys(store.core, SEALED_MAX)
        doubts = store.doubts()
        data = {
            "store": store.url,
            "threads": rows,
            "total": total,
            "complete": not damage,
            "unopened": needs.unopened,
            "doubts": [{"since": doubt.since, "why": doubt.why} for doubt in doubts],
        }
        times_us = [info.updated_at_us for info in shown]
        call.output.answer(
            "status", data, lambda: _print(data, times_us, prefix), records("threads", COLUMNS)
        )
        if call.output.for_people and not (rows or damage):
            _point_elsewhere(store)
        # What follows says so of all of them at once.
        call.tell_of_damage(known=True)
        for doubt in doubts:
            note(f"{clean(str(doubt))}; {call.command('doubt --help')} says what to do")
    if damage:
        note(f"damaged: {damage}; there may be more threads, and everthread doctor says more")
        return CORRUPT
    hurt = [row["name"] for row in rows if row["session"] in _UNREADABLE and row["name"] not in spoilt]
    if hurt and not spoilt:
        more = f" and {len(hurt) - 1} more" if len(hurt) > 1 else ""
        note(
            f"damaged: the journal of {hurt[0]!r}{more}, so that how its last run ended isn't known; "
            "everthread doctor says more"
        )
        return CORRUPT
    if spoilt:
        more = f" and {len(spoilt) - 1} more" if len(spoilt) > 1 else ""
        note(f"damaged: the newest version of {spoilt[0]!r}{more}; everthread doctor says more")
        return CORRUPT
    if not rows and prefix:
        return NOTHING
    return unopened_code(needs) if needs.unopened else OK


def _point_elsewhere(store: Store) -> None:
    from everthread.cli.options import namespaces_in_words, other_namespaces

    with suppress(DamageError):
        if others := namespaces_in_words(other_namespaces(store)):
            note(f"there is something else: {others} (--namespace)")


def _row(store: Store, info: ThreadInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "version": info.seq,
        "version_id": info.version_id,
        "updated_at": info.updated_at,
        "session": "damaged" if info.damaged else _session(store, info.name),
        "label": info.label,
        "metadata": info.metadata,
    }


def _session(store: Store, name: str) -> str | None:
    try:
        return session_status(store, name)
    except DamageError:
        return "damaged"
    except ThreadNotFoundError:
        # Deleted since it was listed.
        return None


def _print(data: dict[str, Any], times_us: list[int], prefix: str) -> None:
    rows, now_us = data["threads"], time.time_ns() // 1000
    if not rows:
        none = f"no thread begins with {prefix!r} in" if prefix else "no threads yet in"
        note(f"{none} {data['store']}")
        return
    numbers = max(len(str(row["version"])) for row in rows)
    columns = columns_of_terminal()
    # What stands beside a name takes so many; a label gets what is left.
    beside = numbers + 1 + _AGO_WIDTH + _STATE_WIDTH + 3 * len(_GAP)
    most = min(_NAME_WIDTH_MAX, max(_NAME_WIDTH_MIN, columns - beside)) if columns else _NAME_WIDTH_MAX
    width = min(most, max(cells(clean(row["name"], most)) for row in rows))
    room = min(_LABEL_WIDTH_MAX, columns - width - beside - len(_GAP)) if columns else _LABEL_WIDTH_MAX
    for row, time_us in zip(rows, times_us, strict=True):
        session = row["session"] or "–"
        name = painted(pad(clean(row["name"], width), width), _BOLD)
        version = f"v{row['version']}".ljust(numbers + 1)
        state = painted(session, *_STATUS_COLOURS.get(session, ())) + " " * (_STATE_WIDTH - len(session))
        label = clean(row["label"], room) if row["label"] and room > 1 else ""
        when = ago(time_us, now_us) if time_us else "–"
        say(_GAP.join((name, version, when.ljust(_AGO_WIDTH), state, label)).rstrip())
    if data["total"] > len(rows):
        note(f"… and {counted(data['total'] - len(rows), 'more thread')} (--limit)")


@click.command(epilog=example("status", "status invoice-", "status --json | jq -r '.threads[].name'"))
@click.argument("prefix", default="")
@click.option(
    "--limit", default=LIMIT, show_default=True, type=click.IntRange(1), help="How many threads at most."
)
@click.option("--all", "everything", is_flag=True, help="Also those of object checkpoints.")
@shared_options
@pass_invocation
def status(call: Invocation, prefix: str, limit: int, everything: bool) -> None:
    """The threads whose names begin with PREFIX, those saved last first, each with how its session stands.

    Ends with 3 if no name begins so, with 7 if sealed values of the store can't be opened with the keyring
    here; only the first thousand are looked at, verify and doctor count all.
    """
    raise click.exceptions.Exit(overview(call, prefix, limit, everything))
