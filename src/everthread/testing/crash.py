"""Kills a process in the middle of its work with a store: really, with SIGKILL, at a named point.

:func:`run_until` starts a fresh interpreter that works on the store at a URL and kills itself at the point.
Then whoever asked opens the store and looks at what is there. The pytest fixture ``crash_at`` is this.

Run as a program, this module is that interpreter.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import runpy
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from everthread.errors import InvalidValueError, UsageError
from everthread.store import Store
from everthread.store import open as open_store
from everthread.stores.contract import Backend
from everthread.stores.urls import URL_VARIABLE
from everthread.testing.faults import Call, Point, wrap_every_backend, wrapped

__all__ = ["Crash", "Work", "run_until"]

#: A function at the top of a module, which gets an open store; or a script, which opens ``$EVERTHREAD_URL``.
Work = Callable[..., Any] | str | os.PathLike[str]

_NOT_REACHED = 3


class Crash(msgspec.Struct, frozen=True):
    """A process was killed at ``point``, while it worked on the store at ``url``."""

    point: str
    url: str
    exitcode: int
    output: str

    @contextlib.contextmanager
    def reopen(self, **options: Any) -> Iterator[Store]:
        """The store as the dead process left it; options are those of :func:`everthread.open`."""
        with open_store(self.url, **options) as store:
            yield store


class _Task(msgspec.Struct):
    """What the child is told. ``name`` is empty for a script."""

    point: str
    nth: int
    url: str
    file: str
    name: str
    argument: Any
    path: list[str]


def run_until(
    point: str,
    work: Work,
    url: str,
    *,
    nth: int = 1,
    argument: Any = None,
    timeout_s: float = 60.0,
) -> Crash:
    """Let ``work`` run in a process of its own on the store at ``url`` and kill that at a point.

    ``point``: ``"verb:before"`` or ``"verb:after"``, see :mod:`everthread.testing.faults`; ``nth`` says at
    which call of the verb, counted over all stores that the process opens. ``work``: a function at the top
    of a module (blocking or async; it gets an open store and, if that isn't ``None``, ``argument``, which
    must be plain data), or the path of a script. Whatever they open themselves is watched too, and
    ``$EVERTHREAD_URL`` is ``url``.

    Raises :class:`AssertionError`, with what the process printed, if it came to an end without reaching
    the point: a test that crashes nothing proves nothing.
    """
    Point.parse(point)
    if nth < 1:
        raise InvalidValueError("nth counts from 1", path="nth")
    if url.partition(":")[0] == "memory":
        raise UsageError("a memory: store dies with its process; crash on a store that stays")
    file, name = _whereabouts(work)
    task = _Task(point, nth, url, file, name, argument, [entry or os.getcwd() for entry in sys.path])
    done = subprocess.run(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-c", f"from {__name__} import main; main()"],
        input=msgspec.json.encode(task),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
        check=False,
        env={**os.environ, URL_VARIABLE: url, "PYTHONPATH": os.pathsep.join(task.path)},
    )
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode != -signal.SIGKILL:
        what = "never came to" if done.returncode == _NOT_REACHED else "failed before"
        raise AssertionError(f"the process {what} {point} (nth={nth}); it said:\n{output}")
    return Crash(point, url, done.returncode, output)


def _whereabouts(work: Work) -> tuple[str, str]:
    """The file of a script, or the file and name of a function. Raises if the child couldn't find it."""
    if isinstance(work, str | os.PathLike):
        path = Path(work).resolve()
        if not path.is_file():
            raise InvalidValueError(f"there is no script {path}")
        return str(path), ""
    name = getattr(work, "__qualname__", "")
    module = sys.modules.get(getattr(work, "__module__", ""))
    code = getattr(work, "__code__", None)
    file: Any = getattr(module, "__file__", None) or getattr(code, "co_filename", "")
    if not name.isidentifier() or not os.path.isfile(file):
        raise InvalidValueError(
            f"{work!r} can't be found by another process; pass a function at the top of a module, or a script"
        )
    return os.path.abspath(file), name


def main() -> None:
    """Do what the task on standard input says, and die on the way."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=_Task)
    sys.path[:] = task.path
    point = Point.parse(task.point)
    calls: Counter[str] = Counter()

    def hook(call: Call) -> None:
        if call.moment == "before":
            calls[call.verb] += 1
        if call.is_at(point) and calls[call.verb] == task.nth:
            _die()

    def wrap(backend: Backend) -> Backend:
        return wrapped(backend, hook)

    with wrap_every_backend(wrap):
        _work(task)
    seen = ", ".join(f"{count} × {verb}" for verb, count in sorted(calls.items())) or "none"
    sys.stderr.write(f"calls of the store: {seen}\n")
    sys.stderr.flush()
    # Whatever else still runs, such as threads that the work left behind.
    os._exit(_NOT_REACHED)


def _die() -> None:
    # What was printed so far may tell why a test fails; the store gets no such chance.
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _work(task: _Task) -> None:
    if not task.name:
        runpy.run_path(task.file, run_name="__main__")
        return
    function = getattr(_load(task.file), task.name)
    arguments = () if task.argument is None else (task.argument,)
    if inspect.iscoroutinefunction(function):
        import asyncio

        asyncio.run(_work_async(function, task.url, arguments))
        return
    with open_store(task.url) as store:
        function(store, *arguments)


async def _work_async(function: Callable[..., Any], url: str, arguments: tuple[Any, ...]) -> None:
    from everthread.store_async import open_async

    async with open_async(url) as store:
        await function(store, *arguments)


def _load(file: str) -> Any:
    """A module by its file, under the name it has where that is importable, so that it is there once."""
    for name, module in list(sys.modules.items()):
        if name != "__main__" and getattr(module, "__file__", None) == file:
            return module
    spec = importlib.util.spec_from_file_location("everthread_crash_work", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} can't be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
