"""``everthread``: the commands, each loaded when it is called.

What every start pays for stays small: ``--version`` answers before anything is imported, and neither rich
nor a store is touched before a command needs it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click

#: Command → the module that has it, and its one line in ``--help``: told without loading it.
COMMANDS = {
    "demo": ("demo", "An agent that pays invoices is killed, and resumes."),
    "init": ("keeping", "Make a place for a store."),
    "status": ("status", "The threads of the store, those saved last first."),
    "resume": ("resuming", "What a new run on a thread would find, checked against reality."),
    "log": ("past", "The versions of a thread, as a graph."),
    "show": ("looking", "The state of a thread, now or at a version."),
    "diff": ("looking", "What changed between two versions, or two threads."),
    "search": ("finding", "Find words in messages, todos, decisions and the rest."),
    "fork": ("changing", "A new thread that shares another one's past."),
    "rewind": ("changing", "Take a thread back to an earlier version. Can be undone."),
    "scan": ("scanning", "Find a text that shouldn't be there, and take it out."),
    "export": ("moving", "Write the store into an archive that any other store can import."),
    "import": ("moving", "Bring in what an archive holds."),
    "copy": ("moving", "Bring everything in one store into another."),
    "gc": ("keeping", "Remove what has expired, or is older than what you keep."),
    "erase": ("erasing", "Erase a person: keys, values and bytes, with a signed report."),
    "doctor": ("checkup", "Check the installation, the store's files and every record."),
    "completion": ("keeping", "How to complete commands in your shell."),
}


def main(arguments: list[str] | None = None) -> None:
    """The program. Ends with one of the exit codes of ``docs/guides/command-line.md``."""
    given = sys.argv[1:] if arguments is None else arguments
    if given == ["--version"]:
        from everthread import __version__

        sys.stdout.write(f"everthread {__version__}\n")
        return
    try:
        from everthread.cli.failing import run

        code = run(make_group(), given)
    except KeyboardInterrupt:
        # While it was still starting.
        code = 130
    if arguments is None:
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> None:
    """End the process at once. Everything is written and closed; taking the interpreter apart in an orderly
    way would take a fifth of the time of a short command."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except OSError:
        return
    os._exit(code)


def make_group() -> click.Group:
    """The group of all commands."""
    import click

    from everthread.cli.asking import begin, example, shared_options

    class Lazy(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return list(COMMANDS)

        def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
            return load(name) if name in COMMANDS else None

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, words) for name, (_, words) in COMMANDS.items()])

        def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
            if args and args[0] not in COMMANDS:
                from difflib import get_close_matches

                near = get_close_matches(args[0], COMMANDS, n=1)
                hint = f"did you mean {near[0]!r}?" if near else "see everthread --help"
                raise click.UsageError(f"there is no command {args[0]!r}; {hint}", ctx)
            return super().resolve_command(ctx, args)

    @click.group(
        cls=Lazy,
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        epilog=example("demo", "status", "show invoice-bot", "resume invoice-bot --briefing"),
    )
    @click.version_option(package_name="everthread", prog_name="everthread", message="%(prog)s %(version)s")
    @shared_options
    @click.pass_context
    def everthread(context: click.Context) -> None:
        """Keeps the state of AI agents, so that their thread of work never breaks.

        The store is the one of --store, else $EVERTHREAD_URL, else the nearest .everthread folder, else the
        one in your home. Only init makes one. Answers go to stdout, words for people to stderr; $NO_COLOR
        turns colours off.

        Ends with 0 if all is well, 1 on a failure, 2 on wrong usage, 3 if what was asked for isn't there,
        4 if reality has drifted, 5 if somebody else is at it, 6 if the store is damaged.
        """
        begin(context)
        if context.invoked_subcommand is None:
            click.echo(context.get_help())

    return everthread


def load(name: str) -> click.Command:
    """A command, by its name."""
    from importlib import import_module

    module = import_module(f"everthread.cli.{COMMANDS[name][0]}")
    # One is called as no function can be.
    command: click.Command = getattr(module, "import_" if name == "import" else name)
    return command
