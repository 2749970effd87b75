"""The command that looks for a text that shouldn't be there, and takes it out: scan."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING

import click
import msgspec
from click.core import ParameterSource

from everthread.cli.context import Invocation
from everthread.cli.errors import CORRUPT, NOTHING, OK, as_typed, goes_on
from everthread.cli.options import confirm, example, pass_invocation, shared_options
from everthread.cli.output import Step, clean, moment, note, progress, records
from everthread.errors import DamageError

if TYPE_CHECKING:
    from everthread.redaction.report import Place, Redaction, RedactionReport
    from everthread.store import Store

#: Places that are shown one by one.
_SHOWN_MAX = 100
_COUNTED_MAX = 100_000
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


@click.command(
    epilog=example(
        'scan "ann@example.org"',
        'scan "sk-live" --redact --reason "leaked" --yes',
        "scan --redactions --json",
    )
)
@click.argument("text", required=False)
@click.option("--redact", is_flag=True, help="Put something else in its place, in all of history.")
@click.option("--replacement", default="[redacted]", show_default=True, help="What to put there.")
@click.option("--reason", default="", help="Why; it is kept with the record of the redaction.")
@click.option("--redactions", is_flag=True, help="Only list what was redacted here before.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be redacted.")
@shared_options
@pass_invocation
def scan(
    call: Invocation,
    text: str | None,
    redact: bool,
    replacement: str,
    reason: str,
    redactions: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Find TEXT wherever it stands in clear: in every version, message, label, event and name. It is masked
    in what is printed.

    With --redact it is taken out of the history of all threads and forks, after a question. Versions keep
    their ids, the chain of hashes holds, and the store records what was done: --redactions, instead of TEXT,
    shows that, also of one that was cut short and that another program finished. Names, keys and types of
    events stay. Close other programs that use the store first. Ends with 3 if it isn't there.
    """
    if (text is None) is not redactions or (redactions and redact):
        raise click.UsageError("either TEXT, what to look for, or --redactions, which don't tell it")
    if not redact:
        _refuse_without_redact("replacement", "reason")
    with call.store(settle=False) as store:
        if text is None:
            code = _tell_redactions(call, store)
        elif redact:
            code = _redact(call, store, text, replacement, reason, yes, dry_run)
        else:
            code = _scan(call, store, text)
    raise click.exceptions.Exit(code)


def _refuse_without_redact(*names: str) -> None:
    """Options that would be ignored: whoever gave them meant to redact."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} is for --redact, which isn't there", context)


def _scan(call: Invocation, store: Store, text: str) -> int:
    places: list[Place] = []
    damage = ""
    try:
        _look(store, text, places)
    except DamageError as error:
        if not places:
            raise
        damage = as_typed(str(error))
    _answer(call, places, None, complete=not damage)
    if damage:
        note(f"this may not be all: {damage}")
        return CORRUPT
    return OK if places else NOTHING


def _redact(
    call: Invocation, store: Store, text: str, replacement: str, reason: str, yes: bool, dry_run: bool
) -> int:
    places: list[Place] = []
    _look(store, text, places)
    report = None
    if places:
        if call.output.for_people:
            _show(places)
        if not dry_run:
            confirm(call, f"Put {replacement!r} in the place of all that can be redacted?", yes)
        with progress("redacting") as step, nullcontext() if dry_run else goes_on(lambda: _stopped(step)):
            report = store.redact(
                text, replacement=replacement, reason=reason, dry_run=dry_run, progress=step
            )
    elif not dry_run and (begun := _cut_short(store)):
        # It may have been this text, which is gone: its old bytes needn't be.
        for words in begun:
            note(words)
        confirm(call, "Go on with it?", yes)
        call.settle(store)
    _answer(call, places, report)
    if not dry_run:
        _tell_of_record(store, report)
    return OK if places else NOTHING


def _stopped(step: Step) -> str:
    """It is marked as begun before it says how far it is: until then it isn't known whether it has."""
    goes_on = (
        f"goes on when the store is next opened, or when this is run again; {_record()} tells what was done"
    )
    if step.total:
        return f"stopped in the middle: the redaction {goes_on}"
    return f"stopped: if the redaction had begun, it {goes_on}. If not, nothing was changed"


def _record() -> str:
    """How the record of redactions of the same store is asked for."""
    return click.get_current_context().ensure_object(Invocation).command("scan --redactions")


def _look(store: Store, text: str, places: list[Place]) -> None:
    """Fill the list with what is found, as far as that goes."""
    with progress("looking") as step:
        # One by one: those before damage are kept.
        for place in islice(store.scan(text, progress=step), _COUNTED_MAX):
            places.append(place)  # noqa: PERF402 - see above


def _cut_short(store: Store) -> list[str]:
    """Redactions that nobody is at any more, in words."""
    from everthread.maintenance.unfinished import REDACTION, cut_short

    core = store.core
    begun = cut_short(core.backend, core.space, core.runtime.now_us)
    return [str(work) for _, work in begun if work.what == REDACTION]


def _tell_of_record(store: Store, report: RedactionReport | None) -> None:
    """Where it is told what was done before: a report is about what is done now."""
    from everthread.redaction.redact import recorded

    found = recorded(store.core)
    if report is None:
        if found:
            note(f"{_record()} tells what was redacted here before")
        return
    whole = next((each for each in found if each.id == report.id), None)
    if whole is not None and (whole.versions, whole.events) != (report.versions, report.events):
        note(f"with what was done before it was cut short: {whole}; {_record()} tells of it")


def _answer(
    call: Invocation, places: Sequence[Place], report: RedactionReport | None, *, complete: bool = True
) -> None:
    data = {
        "count": len(places),
        "places": [msgspec.to_builtins(place) for place in places[:_SHOWN_MAX]],
        "report": None if report is None else msgspec.to_builtins(report),
        "complete": complete,
    }

    def words() -> None:
        if report is None:
            _show(places)
        else:
            _show_report(report)

    call.output.answer("scan", data, words, records("places", _COLUMNS))


def _show_report(report: RedactionReport) -> None:
    # What it didn't reach would read as if it was redacted, too.
    click.echo(clean(str(msgspec.structs.replace(report, unreached=()))))
    if report.unreached:
        click.echo("not reached:")
    for words in report.unreached:
        click.echo(clean(f"  {words}"))


def _show(places: Sequence[object]) -> None:
    for place in places[:_SHOWN_MAX]:
        click.echo(clean(str(place), 200))
    if len(places) > _SHOWN_MAX:
        note(f"… and {len(places) - _SHOWN_MAX:,} more")
    if not places:
        note("it isn't there")


# ── what was redacted before ─────────────────────────────────────────────────────────────────────


def _tell_redactions(call: Invocation, store: Store) -> int:
    from everthread.redaction.redact import recorded

    found = recorded(store.core)
    data = {"redactions": [{**msgspec.to_builtins(each), "summary": str(each)} for each in found]}
    columns = ("id", "at_us", "threads", "versions", "events", "reason")
    call.output.answer("scan", data, lambda: _show_redactions(found), records("redactions", columns))
    for words in _cut_short(store):
        note(words)
    return OK if found else NOTHING


def _show_redactions(found: Sequence[Redaction]) -> None:
    for each in found:
        why = f": {each.reason}" if each.reason else ""
        click.echo(clean(f"{moment(each.at_us)}  {each.id}  {each}{why}"))
    if not found:
        note("nothing was redacted here yet")
