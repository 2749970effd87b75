"""Commands that write a version: fork and rewind. Both keep everything that was there."""

from __future__ import annotations

import click

from everthread.cli.asking import Asked, existing, pass_asked, shared_options, version_of
from everthread.cli.looking import version_data
from everthread.cli.telling import note


@click.command()
@click.argument("thread")
@click.argument("name")
@click.option("--at", "version", metavar="VERSION", help="Where to branch off (the head).")
@shared_options
@pass_asked
def fork(asked: Asked, thread: str, name: str, version: str | None) -> None:
    """Make NAME, a new thread that shares the past of THREAD up to a version. THREAD stays as it is."""
    with asked.store() as store:
        made = existing(store, thread).fork(name, at=version_of(version))
        head = made.head
        data = {"thread": name, "source": thread, "version": version_data(head) if head else None}
        seq = head.seq if head else 0
        asked.tell.answer("fork", data, lambda: click.echo(f"{name} goes on from version {seq} of {thread}"))


@click.command()
@click.argument("thread")
@click.argument("version")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@shared_options
@pass_asked
def rewind(asked: Asked, thread: str, version: str, yes: bool, dry_run: bool) -> None:
    """Take THREAD back to VERSION: its document, messages, tasks and step results.

    Nothing is lost: going back is itself a version, and can be rewound in turn. Effects that happened, usage and
    turns stay as they are.
    """
    with asked.store() as store:
        handle = existing(store, thread)
        wanted = version_of(version)
        assert wanted is not None
        found = handle.diff(handle.head, wanted)
        if asked.tell.for_people:
            from everthread.cli.drawing import draw_diff

            draw_diff(f"{thread}: head → {version}", found)
        if dry_run:
            data = {"thread": thread, "summary": found.summary(), "dry_run": True}
            asked.tell.answer("rewind", data, lambda: note("nothing was changed (--dry-run)"))
            return
        if not yes:
            if not asked.tell.for_people:
                raise click.UsageError("rewind asks before it acts; say --yes where nobody can answer")
            click.confirm(f"Take {thread!r} back to version {version}?", abort=True, err=True)
        made = handle.rewind(wanted)
        data = {"thread": thread, "version": version_data(made)}
        asked.tell.answer("rewind", data, lambda: click.echo(f"{thread} is at version {made.seq}, as it was at {version}"))
