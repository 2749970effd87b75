"""The commands, each loaded when it is called, behind click."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from everthread.cli.asking import begin, example, shared_options
from everthread.cli.failing import FAILURE, INTERRUPTED, OK, STOPPED, USAGE, tell
from everthread.cli.telling import say

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
    "verify": ("healing", "Check every record against its checksum and the chain."),
    "salvage": ("healing", "Bring what can be read of a damaged store into a new one."),
    "backup": ("healing", "Write a complete copy of the store."),
    "restore": ("healing", "Replace everything in the store by a backup."),
    "completion": ("keeping", "How to complete commands in your shell."),
}


def invoke(arguments: list[str]) -> int:
    """Run the command that the arguments name; its exit code."""
    group = make_group()
    try:
        if "_EVERTHREAD_COMPLETE" in os.environ:
            from click.shell_completion import shell_complete

            wanted = os.environ["_EVERTHREAD_COMPLETE"]
            return shell_complete(group, {}, "everthread", "_EVERTHREAD_COMPLETE", wanted)
        with group.make_context("everthread", list(arguments)) as context:
            group.invoke(context)
        return OK
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        return _tell_usage(error)
    except click.ClickException as error:
        return tell(error.format_message(), FAILURE)
    except click.Abort as error:
        stopped = isinstance(error.__context__, KeyboardInterrupt)
        return tell(STOPPED, INTERRUPTED if stopped else FAILURE)


def _tell_usage(error: click.UsageError) -> int:
    if error.ctx is not None:
        with suppress(OSError):
            say(error.ctx.get_usage(), err=True)
            say(f"{error.ctx.command_path} --help says more", err=True)
    return tell(error.format_message(), USAGE)


def make_group() -> click.Group:
    """The group of all commands."""

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
        one in your home. Looking never makes one. Answers go to stdout, words for people to stderr;
        $NO_COLOR turns colours off.

        Ends with 0 if all is well, 1 on a failure, 2 on wrong usage, 3 if what was asked for isn't there,
        4 if reality has drifted, 5 if somebody else is at it, 6 if the store is damaged, 130 if it was
        interrupted.
        """
        begin(context)
        if context.invoked_subcommand is None:
            click.echo(context.get_help())

    return everthread


def load(name: str) -> click.Command:
    """A command, by its name."""
    module = import_module(f"everthread.cli.{COMMANDS[name][0]}")
    # One is called as no function can be.
    command: click.Command = getattr(module, "import_" if name == "import" else name)
    return command
