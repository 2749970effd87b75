"""The command line, called inside this process and as a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

import everthread
from everthread.cli.main import main

SOURCE = Path(everthread.__file__).parents[1]


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


def run(arguments: list[str], *, code: int | None, input: str | None = None, colour: bool = False) -> Answer:
    """Call the program inside this process; it must end with ``code``, if one is given."""
    with CliRunner().isolation(input=input, color=colour) as streams:
        try:
            main(arguments)
            ended: Any = 0
        except SystemExit as end:
            ended = end.code
        sys.stdout.flush()
        sys.stderr.flush()
        answer = Answer(ended or 0, streams[0].getvalue().decode(), streams[1].getvalue().decode())
    assert code is None or answer.code == code, answer
    return answer


class Program:
    """``everthread`` on one store. Calling it runs it here; ``start`` runs it as a process of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder

    def __call__(
        self, *arguments: str, code: int = 0, input: str | None = None, colour: bool = False
    ) -> Answer:
        return run(["--store", self.url, *arguments], code=code, input=input, colour=colour)

    def json(self, *arguments: str, code: int = 0, input: str | None = None) -> Any:
        return self(*arguments, "--json", code=code, input=input).data

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "everthread.cli", *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        # Compiled once for all tests, whatever those who run them prefer.
        compiled = {
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(self.folder.parent / "compiled"),
        }
        return {**os.environ, "PYTHONPATH": str(SOURCE), "EVERTHREAD_URL": self.url, **compiled, **more}

    def start(
        self, *arguments: str, input: str | None = None, cwd: Path | None = None, **environment: str
    ) -> Answer:
        found = subprocess.run(
            self.command(*arguments),
            cwd=cwd or self.folder,
            env=self.environment(**environment),
            input=input,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
        )
        return Answer(found.returncode, found.stdout, found.stderr)


Committer = Callable[..., everthread.Thread]


def here(*arguments: str, code: int | None = 0, input: str | None = None) -> Answer:
    """The command line without a store that is named."""
    return run(list(arguments), code=code, input=input)


#: The program, with a Ctrl-C just before a verb of a store is called for the so-many-th time.
_INTERRUPTED = """if True:
    import sys
    from everthread.cli.main import main
    from everthread.testing.faults import wrap_every_backend, wrapped

    verb, number = sys.argv[1], int(sys.argv[2])

    def hook(call):
        if (call.verb, call.moment, call.number) == (verb, "before", number):
            raise KeyboardInterrupt

    with wrap_every_backend(lambda backend: wrapped(backend, hook)):
        main(sys.argv[3:])
"""


def interrupted_apart(program: Program, verb: str, number: int, *arguments: str) -> Answer:
    """The program in a process of its own, which is gone then, so that others go on with what it began."""
    found = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, verb, str(number), *arguments],
        cwd=program.folder,
        env=program.environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert found.returncode == 130, found
    return Answer(found.returncode, found.stdout, found.stderr)
