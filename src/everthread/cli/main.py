"""``everthread``: the commands, each loaded when it is called.

What every start pays for stays small: ``--version`` answers before anything is imported, and neither rich nor a
store is touched before a command needs it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click

#: Command → the module that has it, and its one line in ``--help``: told without loading it.
COMMANDS = {
    "init": ("keeping", "Make a place for a store here."),
    "status": ("looking", "The threads of the store, newest first."),
    "resume": ("resuming", "What a new run would find on a thread, checked against reality."),
    "log": ("looking", "The versions of a thread, as a graph."),
    "show": ("looking", "The state of a thread, now or at a version."),
    "diff": ("looking", "What changed between two versions."),
    "fork": ("changing", "A new thread that shares another one's past."),
    "rewind": ("changing", "Take a thread back to an earlier version."),
    "gc": ("keeping", "Remove what is expired or no longer to be kept."),
    "doctor": ("keeping", "Check the store, its files and its keys."),
    "demo": ("demo", "An agent that pays invoices is killed, and resumes."),
    "completion": ("keeping", "How to complete commands in your shell."),
}


def main(arguments: list[str] | None = None) -> None:
    """The program. Ends with one of the exit codes of ``docs/guides/command-line.md``."""
    given = sys.argv[1:] if arguments is None else arguments
    if given == ["--version"]:
        from everthread import __version__

        sys.stdout.write(f"everthread {__version__}\n")
        return
    from everthread.cli.failing import run

    run(make_group(), given)


def make_group() -> click.Group:
    """The group of all commands."""
    import click

    from everthread.cli.asking import shared_options

    class Lazy(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return list(COMMANDS)

        def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
            if name not in COMMANDS:
                return None
            module = import_module(f"everthread.cli.{COMMANDS[name][0]}")
            command: click.Command = getattr(module, name)
            return command

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, words) for name, (_, words) in COMMANDS.items()])

        def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
            if args and args[0] not in COMMANDS:
                from difflib import get_close_matches

                near = get_close_matches(args[0], COMMANDS, n=1)
                hint = f"did you mean {near[0]!r}?" if near else "see everthread --help"
                raise click.UsageError(f"there is no command {args[0]!r}; {hint}")
            return super().resolve_command(ctx, args)

    @click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
    @click.version_option(package_name="everthread", prog_name="everthread", message="%(prog)s %(version)s")
    @shared_options
    def everthread() -> None:
        """Keeps the state of AI agents, so that their thread of work never breaks.

        The store is the one of --store, else $EVERTHREAD_URL, else the nearest .everthread folder, else the
        one in your home. Data goes to stdout, words for people to stderr.
        """

    return everthread
