"""``everthread completion``: how a shell completes commands."""

from __future__ import annotations

import os

import click

from everthread.cli.context import Invocation
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import note

_SHELLS = {
    "bash": ('eval "$(_EVERTHREAD_COMPLETE=bash_source everthread)"', "~/.bashrc"),
    "zsh": ('eval "$(_EVERTHREAD_COMPLETE=zsh_source everthread)"', "~/.zshrc"),
    "fish": (
        "_EVERTHREAD_COMPLETE=fish_source everthread | source",
        "~/.config/fish/completions/everthread.fish",
    ),
}


@click.command(epilog=example("completion bash >> ~/.bashrc", "completion fish --json"))
@click.argument("shell", type=click.Choice(list(_SHELLS)), required=False)
@shared_options
@pass_invocation
def completion(call: Invocation, shell: str | None) -> None:
    """Print the line that makes SHELL (yours, by $SHELL) complete commands, options and names of threads."""
    shell = shell or os.path.basename(os.environ.get("SHELL", ""))
    if shell not in _SHELLS:
        raise click.UsageError("which shell? everthread completion bash, zsh or fish")
    line, file = _SHELLS[shell]

    def text() -> None:
        note(f"add this line to {file}:")
        click.echo(line)

    call.output.answer("completion", {"shell": shell, "line": line, "file": file}, text)
