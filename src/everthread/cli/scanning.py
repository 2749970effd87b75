"""The command that looks for a text that shouldn't be there, and takes it out: scan."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import click
import msgspec

from everthread.cli.asked import Asked
from everthread.cli.asking import confirm, example, pass_asked, shared_options
from everthread.cli.failing import CORRUPT, NOTHING, OK, as_typed, goes_on
from everthread.cli.progress import progress
from everthread.cli.telling import note, records
from everthread.cli.words import clean
from everthread.errors import DamageError

if TYPE_CHECKING:
    from everthread.redacting.places import Place

#: Places that are shown one by one.
_SHOWN_MAX = 100
_COUNTED_MAX = 100_000
_STOPPED = "stopped in the middle: what has begun is finished when the store is next opened; then scan again"
_COLUMNS = (
    "what",
    "thread",
    "beside",
    "stream",
    "first",
    "last",
    "log",
    "position",
    "path",
    "excerpt",
    "redactable",
)


@click.command(epilog=example('scan "ann@example.org"', 'scan "sk-live" --redact --reason "leaked" --yes'))
@click.argument("text")
@click.option("--redact", is_flag=True, help="Put something else in its place, in all of history.")
@click.option("--replacement", default="[redacted]", show_default=True, help="What to put there.")
@click.option("--reason", default="", help="Why; it is kept with the record of the redaction.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be redacted.")
@shared_options
@pass_asked
def scan(
    asked: Asked, text: str, redact: bool, replacement: str, reason: str, yes: bool, dry_run: bool
) -> None:
    """Find TEXT wherever it stands in clear: in every version, message, label, event and name. It is masked
    in what is printed.

    With --redact it is taken out of the history of all threads and forks, after a question. Versions keep
    their ids, the chain of hashes holds, and the store records what was done. Names, keys and
    types of events stay. Close other programs that use the store first. Ends with 3 if it isn't there.
    """
    damage = ""
    with asked.store(settle=redact and not dry_run) as store:
        places: list[Place] = []
        with progress("looking") as step:
            try:
                for place in islice(store.scan(text, progress=step), _COUNTED_MAX):
                    places.append(place)  # noqa: PERF402 - those before the damage are kept
            except DamageError as error:
                if redact or not places:
                    raise
                damage = as_typed(str(error))
        report = None
        if redact and places:
            if asked.tell.for_people:
                _show(places)
            if not dry_run:
                confirm(asked, f"Put {replacement!r} in the place of all that can be redacted?", yes)
            with progress("redacting") as step, goes_on(lambda: _STOPPED):
                report = store.redact(
                    text, replacement=replacement, reason=reason, dry_run=dry_run, progress=step
                )
        data = {
            "count": len(places),
            "places": [msgspec.to_builtins(place) for place in places[:_SHOWN_MAX]],
            "report": None if report is None else msgspec.to_builtins(report),
            "complete": not damage,
        }

        def words() -> None:
            if report is None:
                _show(places)
            else:
                click.echo(clean(str(report)))

        asked.tell.answer("scan", data, words, records("places", _COLUMNS))
    if damage:
        note(f"this may not be all: {damage}")
        raise click.exceptions.Exit(CORRUPT)
    raise click.exceptions.Exit(OK if places else NOTHING)


def _show(places: Sequence[object]) -> None:
    for place in places[:_SHOWN_MAX]:
        click.echo(clean(str(place), 200))
    if len(places) > _SHOWN_MAX:
        note(f"… and {len(places) - _SHOWN_MAX:,} more")
    if not places:
        note("it isn't there")
