"""``everthread files``: the files of a sandbox, or of the working folder beside a thread."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from everthread.arguments import counted
from everthread.cli.context import Invocation
from everthread.cli.log import thread_argument, version_data
from everthread.cli.options import HOW, example, existing, find_version, pass_invocation, shared_options
from everthread.cli.output import clean, note, records

if TYPE_CHECKING:
    from everthread.sandboxes.directory import Restored
    from everthread.sandboxes.files import FilesView
    from everthread.sandboxes.tree import FileInfo
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version

COLUMNS = ("path", "kind", "mode", "size", "target", "personal")
_at = click.option("--at", metavar="VERSION", help="As it was at this version of the thread; by default now.")
_reveal = click.option("--reveal", is_flag=True, help="Also what is sealed for a person, in clear.")


@click.group(
    epilog=example(
        "files list invoice-bot",
        "files cat invoice-bot src/main.py --at head~3",
        "files restore invoice-bot ./as-it-was --at 7",
        "files diff invoice-bot --at 7",
    ),
    invoke_without_command=True,
)
@shared_options
@click.pass_context
def files(context: click.Context) -> None:
    """The files that a thread holds, as a sandbox does, or that were recorded of the folder beside it:
    what they are (list), what is in one (cat), all of them in a new folder (restore), what changed (diff).
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@files.command(
    "list",
    short_help="Which files there are.",
    epilog=example("files list invoice-bot", "files list invoice-bot src --at 7 --json"),
)
@thread_argument
@click.argument("folder", default="")
@_at
@shared_options
@pass_invocation
def list_(call: Invocation, thread: str, folder: str, at: str | None) -> None:
    """List the files of THREAD, or those in FOLDER."""
    with call.store() as store:
        version, view = _view(existing(store, thread), at)
        found = [_data(each) for each in view.list(folder)]

    def show() -> None:
        for each in found:
            target = f" -> {each['target']}" if each["target"] is not None else ""
            sealed = "  (personal)" if each["personal"] else ""
            click.echo(clean(f"{each['mode']} {each['size']:>11,}  {each['path']}{target}{sealed}"))
        if not found:
            note("no files")

    data = {"thread": thread, "version": version_data(version), "files": found}
    call.output.answer("files", data, show, records("files", COLUMNS))


@files.command(
    short_help="What is in a file, byte by byte.",
    epilog=example("files cat invoice-bot src/main.py", "files cat invoice-bot notes.md --at head~1"),
)
@thread_argument
@click.argument("path")
@_at
@_reveal
@shared_options
@pass_invocation
def cat(call: Invocation, thread: str, path: str, at: str | None, reveal: bool) -> None:
    """Write what is in the file PATH of THREAD to the standard output, byte by byte."""
    with call.store() as store:
        _, view = _view(existing(store, thread), at)
        _check_revealed([view.info(path)], reveal)
        out = sys.stdout.buffer
        for piece in view.stream(path):
            out.write(piece)
        out.flush()


@files.command(
    short_help="Write all files into a new folder.",
    epilog=example("files restore invoice-bot ./as-it-was", "files restore invoice-bot ./as-it-was --at 7"),
)
@thread_argument
@click.argument("directory", type=click.Path())
@_at
@_reveal
@shared_options
@pass_invocation
def restore(call: Invocation, thread: str, directory: str, at: str | None, reveal: bool) -> None:
    """Write all files of THREAD into DIRECTORY, which must not exist, or be empty; nothing else changes."""
    from everthread.sandboxes.directory import restore_directory

    with call.store() as store:
        version, view = _view(existing(store, thread), at)
        found = view.list()
        _check_revealed(found, reveal)
        done = restore_directory(view, directory)
    data = {
        "thread": thread,
        "version": version_data(version),
        "directory": directory,
        "written": done.written,
        "erased": list(done.erased),
    }

    def show() -> None:
        note(f"{_written(found, done)} of {version} in {clean(directory)}")
        for each in done.erased:
            note(f"{clean(each)} belonged to somebody who was erased, and isn't there")

    call.output.answer("files", data, show)


@files.command(
    short_help="Which files differ between two versions.",
    epilog=example(
        "files diff invoice-bot", "files diff invoice-bot --at 7", "files diff invoice-bot --at 3 --to 7"
    ),
    help=f"""Which files of THREAD differ from those at a version: by default the one before the last.

    {HOW}
    """,
)
@thread_argument
@click.option("--at", metavar="VERSION", default="head~1", show_default=True, help="From this version.")
@click.option("--to", metavar="VERSION", default="head", show_default=True, help="To this version.")
@shared_options
@pass_invocation
def diff(call: Invocation, thread: str, at: str, to: str) -> None:
    from everthread.sandboxes.tree import compare

    with call.store() as store:
        handle = existing(store, thread)
        old, before = _view(handle, at, none_is_empty=True)
        new, after = _view(handle, to)
        found = compare(before.tree, after.tree)
        rows = [
            *({"change": "added", **_data(each)} for each in found.added),
            *({"change": "changed", **_data(each)} for _, each in found.changed),
            *({"change": "removed", **_data(each)} for each in found.removed),
        ]

    def show() -> None:
        for each in rows:
            click.echo(clean(f"{each['change']:8} {each['path']}"))
        note(found.summary())

    data = {
        "thread": thread,
        "old": version_data(old),
        "new": version_data(new),
        "summary": found.summary(),
        "changes": rows,
    }
    call.output.answer("files", data, show, records("changes", ("change", *COLUMNS)))


def _written(found: list[FileInfo], done: Restored) -> str:
    """What was written, in words."""
    links = sum(each.kind == "link" for each in found)
    files = sum(each.kind == "file" for each in found) - len(done.erased)
    # A tree needn't mention the folders that its files are in.
    folders = done.written - files - links
    counts = ((links, "link"), (folders, "folder"))
    others = [counted(count, kind) for count, kind in counts if count]
    return " and ".join(filter(None, (", ".join([counted(files, "file"), *others[:-1]]), *others[-1:])))


def _view(thread: Thread, at: str | None, *, none_is_empty: bool = False) -> tuple[Version, FilesView]:
    from everthread.errors import NotFoundError
    from everthread.sandboxes.workspace import empty_view, files_at

    version = find_version(thread, at or "head")
    try:
        return version, files_at(thread, version)
    except NotFoundError:
        if not none_is_empty:
            raise
        return version, empty_view(thread)


def _check_revealed(found: list[FileInfo], reveal: bool) -> None:
    sealed = [each.path for each in found if each.personal]
    if sealed and not reveal:
        raise click.UsageError(f"{clean(sealed[0])} is sealed for a person; --reveal shows it in clear")


def _data(info: FileInfo) -> dict[str, Any]:
    from everthread.sandboxes.paths import bytes_text, path_text

    # Names that aren't UTF-8 as their bytes' escapes: JSON has no others.
    return {
        "path": path_text(info.path),
        "kind": info.kind,
        "mode": info.mode_text,
        "size": info.size,
        "target": None if info.target is None else bytes_text(os.fsencode(info.target)),
        "personal": info.personal,
    }
