"""Commands that look after the store: init, gc, doctor, completion."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.asking import Asked, pass_asked, shared_options
from everthread.cli.failing import CORRUPT, FAILURE, OK
from everthread.cli.telling import note

if TYPE_CHECKING:
    from everthread.opening import Store


@click.command()
@click.argument("folder", default=".", type=click.Path(file_okay=False))
@shared_options
@pass_asked
def init(asked: Asked, folder: str) -> None:
    """Make a place for a store in FOLDER: a private .everthread, which programs started below it find.

    The store itself is made by the first commit. Doing it again changes nothing.
    """
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
    words = f"{place} is the place for your agents' state" if made else f"{place} is there already"
    asked.tell.answer("init", {"place": place, "made": made}, lambda: click.echo(words))


@click.command()
@click.option("--keep-last", type=click.IntRange(1), help="Versions of each thread to keep at least.")
@click.option("--keep-days", type=click.FloatRange(0), help="Also keep versions younger than this.")
@click.option("--compact", is_flag=True, help="Give the space back to the file system.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@shared_options
@pass_asked
def gc(
    asked: Asked,
    keep_last: int | None,
    keep_days: float | None,
    compact: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Remove expired threads and, where --keep-last or --keep-days says so, old versions.

    Labelled versions, what forks share and the present state always stay. Shows first what would go.
    """
    from everthread.history.retention import Retention

    retention = None
    if keep_last is not None or keep_days is not None:
        keep_us = None if keep_days is None else int(keep_days * 86_400e6)
        retention = Retention(keep_last=keep_last, keep_within_us=keep_us)
    with asked.store() as store:
        preview = store.gc(retention=retention, dry_run=True)
        if not dry_run:
            if not yes:
                if not asked.tell.for_people:
                    raise click.UsageError("gc asks before it acts; say --yes where nobody can answer")
                click.echo(f"this would go: {preview}")
                click.confirm("Remove it?", abort=True, err=True)
            with progress("cleaning up") as step:
                report = store.gc(retention=retention, progress=step, compact=compact)
        else:
            report = preview
        asked.tell.answer("gc", {"report": str(report), "dry_run": dry_run}, lambda: click.echo(str(report)))


@click.command()
@click.option("--quick", is_flag=True, help="Don't read every record.")
@shared_options
@pass_asked
def doctor(asked: Asked, quick: bool) -> None:
    """Check the installation, the store's files and every record. Changes nothing.

    Ends with 6 if anything is damaged, with 1 if something else needs you.
    """
    checks: list[dict[str, Any]] = []

    def check(name: str, fine: bool, found: str) -> None:
        checks.append({"check": name, "ok": fine, "found": found})

    _check_installation(check)
    damaged = False
    with asked.store() as store:
        check("store", True, store.url)
        _check_modes(store, check)
        if not quick:
            with progress("reading every record") as step:
                report = store.verify(step)
            damaged = not report.ok
            check("records", report.ok, str(report))
            for damage in report.damage[:20]:
                check("damage", False, str(damage))
    data = {"checks": checks, "ok": all(c["ok"] for c in checks)}
    asked.tell.answer("doctor", data, lambda: _print_checks(checks))
    raise click.exceptions.Exit(CORRUPT if damaged else OK if data["ok"] else FAILURE)


def _check_installation(check: Callable[[str, bool, str], None]) -> None:
    import apsw

    from everthread import __version__

    version = apsw.sqlite_lib_version()
    check("everthread", True, f"{__version__} on Python {sys.version.split()[0]}")
    # Before that release a write-ahead log could be corrupted.
    fine = tuple(map(int, version.split("."))) >= (3, 51, 3)
    check("SQLite", fine, f"{version}" if fine else f"{version} is too old: pip install --upgrade apsw")


def _check_modes(store: Store, check: Callable[[str, bool, str], None]) -> None:
    from urllib.parse import unquote

    if not store.url.startswith("sqlite:///"):
        return
    path = unquote(store.url.removeprefix("sqlite:///"))
    for name in (path, path + "-wal"):
        if os.path.exists(name):
            mode = stat.S_IMODE(os.stat(name).st_mode)
            private = not mode & 0o077
            hint = "" if private else f"; others can read it: chmod 600 {name}"
            check("file", private, f"{name} ({mode:03o}){hint}")


def _print_checks(checks: list[dict[str, Any]]) -> None:
    for found in checks:
        mark = click.style("✓", fg="green") if found["ok"] else click.style("✗", fg="red")
        click.echo(f"{mark} {found['check']}: {found['found']}")


class progress:  # noqa: N801 - reads as a function
    """A bar on the terminal, if there is one, for work that takes longer than a moment."""

    def __init__(self, words: str) -> None:
        self._words = words
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Callable[[int, int], None]:
        return self._step

    def _step(self, done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._words, total=total)
        self._bar.update(self._task, completed=done, total=total)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), required=False)
def completion(shell: str | None) -> None:
    """Print the line that makes SHELL (yours, by $SHELL) complete commands and options."""
    shell = shell or os.path.basename(os.environ.get("SHELL", ""))
    lines = {
        "bash": 'eval "$(_EVERTHREAD_COMPLETE=bash_source everthread)"',
        "zsh": 'eval "$(_EVERTHREAD_COMPLETE=zsh_source everthread)"',
        "fish": "_EVERTHREAD_COMPLETE=fish_source everthread | source",
    }
    if shell not in lines:
        raise click.UsageError("which shell? everthread completion bash, zsh or fish")
    files = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/completions/everthread.fish"}
    note(f"add this line to {files[shell]}:")
    click.echo(lines[shell])
