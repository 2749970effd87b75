"""What every command may be told, and the store it then works on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import click

from everthread.cli.telling import FORMATS, Telling

if TYPE_CHECKING:
    from everthread.opening import Store
    from everthread.threads.sync.thread import Thread

F = TypeVar("F", bound=Callable[..., Any])


class Asked:
    """The shared options of one call."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.namespace = ""
        self.format = "text"

    @property
    def tell(self) -> Telling:
        return Telling(self.format)

    @contextmanager
    def store(self, *, create: bool = False) -> Iterator[Store]:
        """The store, for the length of a command. Reading commands never create one."""
        from everthread.opening import open as open_store
        from everthread.stores.urls import default_url

        url = self.url if self.url is not None else default_url()
        if not create:
            _require(url)
        with open_store(url, namespace=self.namespace) as store:
            yield store


def _require(url: str) -> None:
    """Looking at a store that isn't there must not make one."""
    from everthread.errors import NotFoundError

    scheme, _, rest = url.partition(":")
    location = unquote(rest.partition("?")[0])
    path = location[3:] if scheme == "sqlite" else location.removeprefix("//")
    if scheme in ("sqlite", "file") and not os.path.exists(path):
        raise NotFoundError(f"there is no store at {path} yet; an agent makes it with its first commit")


def _note(field: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        asked = ctx.ensure_object(Asked)
        if value not in (None, False, ""):
            setattr(asked, field, "json" if value is True else value)

    return callback


def shared_options(command: F) -> F:
    """Options that may stand before or after the command's name."""
    options = [
        click.option("--store", metavar="URL", expose_value=False, callback=_note("url"), help="Which store."),
        click.option(
            "--namespace", metavar="NAME", expose_value=False, callback=_note("namespace"), help="Which tenant."
        ),
        click.option(
            "--format",
            type=click.Choice(FORMATS),
            expose_value=False,
            callback=_note("format"),
            help="How to print the answer (text).",
        ),
        click.option(
            "--json", is_flag=True, expose_value=False, callback=_note("format"), help="The same as --format json."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


pass_asked = click.make_pass_decorator(Asked, ensure=True)


def existing(store: Store, name: str) -> Thread:
    """The thread of this name, or an error that names some that are there."""
    from everthread.errors import ThreadNotFoundError

    thread = store.thread(name)
    if thread.head is None:
        near = [info.name for info in store.threads(prefix=name[:3], limit=3)]
        hint = f"; there are {', '.join(map(repr, near))}" if near else "; see everthread status"
        raise ThreadNotFoundError(f"there is no thread {name!r}{hint}")
    return thread


def version_of(text: str | None) -> int | str | None:
    """A version as it is typed: its number, or its id."""
    return int(text) if text is not None and text.isdigit() else text
