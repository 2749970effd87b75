"""``everthread search``: words in what agents keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import Invocation
from everthread.cli.errors import CORRUPT, NOTHING, OK
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean, colours, note, progress, records
from everthread.search.text import KINDS

if TYPE_CHECKING:
    from everthread.search.query import Hit

COLUMNS = ("thread", "kind", "id", "log", "index", "excerpt", "score")


@click.command(
    epilog=example(
        "search invoice", "search '\"pay twice\" march' --kind decision", "search error --in bot/"
    ),
    help=f"""Find WORDS in the newest version of every thread, the best first.

    All words must occur; those in double quotes one after the other. Case and accents don't count. Personal
    values are never looked at. Kinds are {", ".join(KINDS)}. Ends with 3 if nothing is found.
    """,
)
@click.argument("words", nargs=-1, required=True)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), metavar="KIND", help="Only these.")
@click.option("--in", "prefix", default="", metavar="PREFIX", help="Only threads whose names begin so.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 1000), help="How many hits.")
@shared_options
@pass_invocation
def search(call: Invocation, words: tuple[str, ...], kinds: tuple[str, ...], prefix: str, limit: int) -> None:
    with call.store() as store, progress("Looking") as step:
        hits = store.search(" ".join(words), kinds=kinds or None, prefix=prefix, limit=limit, progress=step)
    data = {"store": store.url, "hits": [_data(hit) for hit in hits], "skipped": hits.skipped}
    call.output.answer("search", data, lambda: _print(hits), records("hits", COLUMNS))
    if hits.skipped:
        note(
            f"not looked at (damaged, or in a cold archive): {', '.join(hits.skipped)}; see everthread doctor"
        )
        raise click.exceptions.Exit(CORRUPT)
    raise click.exceptions.Exit(OK if hits else NOTHING)


def _data(hit: Hit) -> dict[str, Any]:
    return {name: getattr(hit, name) for name in (*COLUMNS, "marks")}


def _print(hits: tuple[Hit, ...]) -> None:
    if not hits:
        note("nothing found")
    for hit in hits:
        place = click.style(clean(hit.thread), bold=True)
        kind = click.style(hit.kind.replace("_", " "), dim=True)
        where = f" {clean(hit.id)}" if hit.id else ""
        click.echo(f"{place}  {kind}{where}\n    {_marked(hit)}", color=colours())


def _marked(hit: Hit) -> str:
    parts, at = [], 0
    for start, stop in hit.marks:
        if start >= at:
            parts += [clean(hit.excerpt[at:start]), click.style(clean(hit.excerpt[start:stop]), fg="yellow")]
            at = stop
    return "".join([*parts, clean(hit.excerpt[at:])])
