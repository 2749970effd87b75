"""The table of commands, each a module that is loaded when it is called, and the one parser before them."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from everthread import __version__
from everthread.cli.errors import FAILURE, INTERRUPTED, OK, STOPPED, USAGE, tell
from everthread.cli.options import begin, example, shared_options
from everthread.cli.output import note, say, typed

#: Each command is a module of its own. What ``--help`` says of it is said without loading it.
COMMANDS = {
    "demo": "An agent that pays invoices is killed, and resumes.",
    "init": "Make a place for a store.",
    "status": "The threads of the store, those saved last first.",
    "resume": "What a new run on a thread would find, checked against reality.",
    "log": "The versions of a thread, as a graph.",
    "show": "The state of a thread, now or at a version.",
    "diff": "What changed between two versions, or two threads.",
    "files": "The files of a sandbox or working folder, at any version.",
    "runs": "The runs of agents on a thread.",
    "effects": "What runs did to the world, and what nobody knows.",
    "settle": "Say whether an effect in doubt has happened.",
    "doubt": "Say that the store lost what was written to it after a time.",
    "events": "All streams of events, or the events of one.",
    "send": "Send a message to a thread, and so to the run at work on it.",
    "todo": "Add, start, finish, cancel and list todos.",
    "note": "Note a fact in a thread's context.",
    "decide": "Record a decision before you act on it.",
    "outcome": "Record what came of a decision.",
    "loop": "Open and close open loops: what a thread waits for.",
    "intend": "Record what the agent is about to do.",
    "append": "Append a message to a thread's conversation.",
    "constraint": "Standing orders that every briefing shows.",
    "search": "Find words in messages, todos, decisions and the rest.",
    "fork": "A new thread that shares another one's past.",
    "merge": "Bring in what another thread did since both went apart.",
    "rewind": "Take a thread back to an earlier version. Can be undone.",
    "delete": "Delete a thread for good. Its forks live on.",
    "scan": "Find a text that shouldn't be there, and take it out.",
    "export": "Write the store into an archive that any other store can import.",
    "import": "Bring in what an archive holds.",
    "copy": "Bring everything in one store into another.",
    "gc": "Remove what has expired, or is older than what you keep.",
    "erase": "Erase a person: keys, values and bytes, with a signed report.",
    "hold": "Legal holds on the data of persons.",
    "users": "Values of persons, each sealed under the person's own key.",
    "stats": "What threads take up, by thread, kind and age.",
    "doctor": "Check the installation, the store's files and every record.",
    "verify": "Check every record against its checksum and the chain.",
    "salvage": "Bring what can be read of a damaged store into a new one.",
    "backup": "Write a complete copy of the store.",
    "restore": "Replace everything in the store by a backup.",
    "keyring": "The keys of persons: where they are, a copy of them, and back.",
    "mcp": "Serve the store to a coding agent over MCP.",
    "completion": "How to complete commands in your shell.",
}

#: What takes something away, or puts something else in its place: never offered to who has mistyped.
DESTRUCTIVE = ("settle", "doubt", "rewind", "delete", "scan", "gc", "erase", "restore")


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
                formatter.write_dl(list(COMMANDS.items()))

        def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
            if args and args[0] not in COMMANDS:
                from difflib import get_close_matches

                harmless = [name for name in COMMANDS if name not in DESTRUCTIVE]
                near = get_close_matches(args[0], harmless, n=2)
                hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "see everthread --help"
                raise click.UsageError(f"there is no command {args[0]!r}; {hint}", ctx)
            return super().resolve_command(ctx, args)

    @click.group(
        cls=Lazy,
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        epilog=example("demo", "status", "show invoice-bot", "resume invoice-bot --briefing"),
    )
    @click.version_option(__version__, prog_name="everthread", message="%(prog)s %(version)s")
    @shared_options
    @click.pass_context
    def everthread(context: click.Context) -> None:
        """Keeps the state of AI agents, so that their thread of work never breaks.

        The store is the one of --store, else $EVERTHREAD_URL, else the nearest .everthread folder, else the
        one in your home; $EVERTHREAD_NAMESPACE and $EVERTHREAD_KEYRING stand for --namespace and --keyring.
        Looking never makes a store. Answers go to stdout, words for people to stderr;
        $NO_COLOR turns colours off.

        Exit codes: 0 all is well; 1 failure; 2 wrong usage; 3 not found; 4 reality has drifted; 5 busy:
        another run or process holds the thread or the store; 6 the store is damaged; 7 sealed values
        can't be opened here; 130 interrupted.
        """
        begin(context)
        if context.invoked_subcommand is None:
            click.echo(context.get_help())

    return everthread


def load(name: str) -> click.Command:
    """A command, by its name."""
    # One is called as no module or function can be.
    module = "import_" if name == "import" else name
    command: click.Command = getattr(import_module(f"everthread.cli.{module}"), module)
    return command


# A store that stands where the name of a thread is expected: said how it is named instead.


#: Commands whose arguments are names of threads, or words.
_NAMING = (
    "status", "resume", "log", "show", "diff", "files", "runs", "effects", "settle", "events", "search",
    "fork", "merge", "rewind", "delete",
)  # fmt: skip


def hint(given: list[str]) -> None:
    """Say that a store is named with ``--store``, if an argument looks like one."""
    command = next((word for word in given if word in _NAMING), None)
    if command is None or any(word.partition("=")[0] == "--store" for word in given):
        return
    for word in given:
        url = _store(word)
        if url is not None:
            with suppress(OSError):
                note(f"{word} looks like a store, not a name: everthread {command} --store {typed(url)}")
            return


def _store(word: str) -> str | None:
    """The URL of the store that a word means, if it looks like one."""
    from everthread.stores.urls import NETWORK, sqlite_url

    scheme, found, _ = word.partition("://")
    if found:
        return word if scheme in ("sqlite", "file", *NETWORK) else None
    try:
        if os.path.isfile(os.path.join(word, "everthread.json")):
            return f"file://{os.path.abspath(word)}"
        with open(word, "rb") as file:
            return sqlite_url(word) if file.read(16) == b"SQLite format 3\0" else None
    except (OSError, ValueError):
        return None
