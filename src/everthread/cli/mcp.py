"""``everthread mcp``: the MCP server for coding agents."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from everthread import __version__
from everthread.cli.context import Invocation
from everthread.cli.errors import INTERRUPTED
from everthread.cli.options import example, pass_invocation, shared_options

if TYPE_CHECKING:
    from everthread.store import Store


@click.command(epilog=example("mcp", "mcp --store sqlite:///agent.db"))
@shared_options
@pass_invocation
def mcp(call: Invocation) -> None:
    """Serve the store to a coding agent: the Model Context Protocol on stdin and stdout.

    Started by the agent, not by hand: see docs/guides/mcp.md. Writes go to $EVERTHREAD_THREAD, else the
    project's default thread, unless a call names another. The store is opened at the first call. Ends when
    stdin is closed.
    """
    from everthread.agents.mcp import Server, serve
    from everthread.agents.tools import Toolbox

    def open_store(create: bool) -> Store:
        from everthread.stores.urls import default_url

        if not create:
            return call.looked_at(call.where)
        return call.made(call.url if call.url is not None else default_url())

    tools = Toolbox(open_store)
    try:
        serve(Server(tools, __version__), sys.stdin.buffer, sys.stdout.buffer)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None
    finally:
        tools.close()
