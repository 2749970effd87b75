"""``everthread init``: a place for a store."""

from __future__ import annotations

import os

import click

from everthread.agents.project import THREAD_FILE, default_thread
from everthread.cli.context import Invocation, missing
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean, note


@click.command(epilog=example("init", "init ~/work/bot", "init --store sqlite:///agent.db"))
@click.argument("folder", required=False, type=click.Path(file_okay=False))
@click.option("--thread", metavar="NAME", help="The project's default thread.  [default: the folder's name]")
@shared_options
@pass_invocation
def init(call: Invocation, folder: str | None, thread: str | None) -> None:
    """Create a private .everthread in FOLDER (default: here), which programs started in or below it find by
    themselves, and name the project's default thread after the folder, or as --thread says. The store itself
    is created by the first commit.

    With --store an empty store is created there instead. Repeating it changes nothing.
    """
    if call.url is not None:
        if folder is not None:
            raise click.UsageError("either a FOLDER or a --store, not both")
        if thread is not None:
            raise click.UsageError("--thread belongs to a FOLDER; with --store, set $EVERTHREAD_THREAD")
        local = call.url.startswith(("sqlite:", "file:"))
        made = missing(call.url) is not None if local else None
        with call.made(call.url) as store:
            url = store.url
        words = f"there is a store at {url}"
        call.output.answer("init", {"place": url, "made": made}, lambda: click.echo(clean(words)))
        return
    above = _place_above(folder or ".")
    place, made = _make_place(folder or ".")
    name = _name_thread(place, thread)
    words = f"{place} is the place for your agents' state" if made else f"{place} is there already"
    data = {"place": place, "made": made, "thread": name}
    call.output.answer("init", data, lambda: click.echo(clean(f"{words}; default thread: {name}")))
    if made and above is not None:
        note(f"programs started here find this one now, no longer {above}")


def _make_place(folder: str) -> tuple[str, bool]:
    from everthread.errors import StoreUnavailableError
    from everthread.stores.urls import FOLDER

    place = os.path.join(os.path.abspath(folder), FOLDER)
    try:
        made = not os.path.isdir(place)
        os.makedirs(place, mode=0o700, exist_ok=True)
        ignore = os.path.join(place, ".gitignore")
        if made and not os.path.exists(ignore):
            with open(ignore, "x", encoding="utf-8") as file:
                file.write("*\n")
    except OSError as error:
        raise StoreUnavailableError(f"can't make {place}: {error.strerror}") from error
    return place, made


def _name_thread(place: str, given: str | None) -> str:
    """Record the project's default thread and return its name. One that is recorded changes only if asked."""
    from everthread.arguments import check_name
    from everthread.errors import StoreUnavailableError

    path = os.path.join(place, THREAD_FILE)
    if given is None:
        known = default_thread(os.path.dirname(place))
        if known is not None:
            return known
    name = check_name(given or os.path.basename(os.path.dirname(place)) or "main", "thread")
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{name}\n")
    except OSError as error:
        raise StoreUnavailableError(f"can't write {path}: {error.strerror}") from error
    return name


def _place_above(folder: str) -> str | None:
    """The place that programs started in ``folder`` find so far, if it isn't in ``folder`` itself."""
    from everthread.stores.urls import FOLDER

    here = os.path.abspath(folder)
    while (above := os.path.dirname(here)) != here:
        here = above
        place = os.path.join(here, FOLDER)
        if os.path.isdir(place):
            return place
    return None
