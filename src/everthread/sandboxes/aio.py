"""Files, sandboxes and working folders for async callers: the blocking ones, on worker threads."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from everthread.errors import UsageError
from everthread.sandboxes.files import (
    DEFAULT_FILE_LIMITS,
    FileLimits,
    Files,
    SnapshotRef,
)
from everthread.sandboxes.local import LocalSandboxes, Sandbox
from everthread.sandboxes.paths import AnyPath
from everthread.sandboxes.workspace import Workspace, check_empty, compare_versions
from everthread.threads.aio.thread import AsyncThread
from everthread.threads.twins import AwaitedFace

if TYPE_CHECKING:
    from everthread.sandboxes.directory import Restored, Saved
    from everthread.sandboxes.tree import FileInfo, FilesDiff
    from everthread.sandboxes.workspace import Interrupted
    from everthread.threads.aio.handle import AnyVersion
    from everthread.threads.aio.workspace import RecordedFiles
    from everthread.values import Personal

T = TypeVar("T")


async def on_worker(thread: AsyncThread, call: Callable[[Any], T]) -> T:
    """Call a function with the blocking store behind a thread's, on a worker thread."""
    run = thread.core.run_blocking
    if run is None:
        raise UsageError("this thread belongs to no open store; everthread.open_async() gives one")
    made: T = await run(call)
    return made


class AsyncFiles(AwaitedFace):
    """As :class:`Files`, on a thread of an async store: every call is awaited.

    It has a handle of its own on the thread: what is committed through yours is seen after :meth:`refresh`.
    """

    def __init__(
        self, thread: AsyncThread, *, subject: str | None = None, limits: FileLimits = DEFAULT_FILE_LIMITS
    ) -> None:
        if not isinstance(thread, AsyncThread):
            raise UsageError(
                "AsyncFiles() takes a thread of an async store; Files(thread) is for blocking ones"
            )
        self.thread = thread
        self._options: dict[str, Any] = {"subject": subject, "limits": limits}
        self._files: Files | None = None
        #: Its handle is for one worker thread at a time.
        self._lock = threading.Lock()

    async def _do(self, call: Callable[[Files], T]) -> T:
        def work(store: Any) -> T:
            with self._lock:
                if self._files is None:
                    self._files = Files(store.thread(self.thread.name), **self._options)
                return call(self._files)

        return await on_worker(self.thread, work)

    async def read(self, path: AnyPath, at: AnyVersion | SnapshotRef | None = None) -> bytes:
        """The content of a file, now or at a version: see :meth:`Files.read`."""
        return await self._do(lambda files: (files if at is None else files.at(at)).read(path))

    async def list(
        self, folder: AnyPath = "", *, recursive: bool = True, at: AnyVersion | SnapshotRef | None = None
    ) -> list[FileInfo]:
        """What is in a folder, now or at a version: see :meth:`Files.list`."""
        return await self._do(
            lambda files: (files if at is None else files.at(at)).list(folder, recursive=recursive)
        )

    async def info(self, path: AnyPath) -> FileInfo:
        """What is at a path: see :meth:`Files.info`."""
        return await self._do(lambda files: files.info(path))

    async def exists(self, path: AnyPath) -> bool:
        """Whether there is something at a path."""
        return await self._do(lambda files: files.exists(path))

    async def write(
        self, path: AnyPath, data: bytes | bytearray | str | Personal, mode: int | None = None
    ) -> None:
        """Put a file in its place: see :meth:`Files.write`."""
        await self._do(lambda files: files.write(path, data, mode))

    async def remove(self, path: AnyPath, *, recursive: bool = False) -> None:
        """Remove a file, a link or a folder: see :meth:`Files.remove`."""
        await self._do(lambda files: files.remove(path, recursive=recursive))

    async def move(self, path: AnyPath, to: AnyPath) -> None:
        """Give something another path: see :meth:`Files.move`."""
        await self._do(lambda files: files.move(path, to))

    async def make_folder(self, path: AnyPath, mode: int = 0o755) -> None:
        """An empty folder: see :meth:`Files.make_folder`."""
        await self._do(lambda files: files.make_folder(path, mode))

    async def link(self, path: AnyPath, target: AnyPath) -> None:
        """A symbolic link: see :meth:`Files.link`."""
        await self._do(lambda files: files.link(path, target))

    async def save(
        self, label: str | None = None, metadata: Mapping[str, Any] | None = None, key: str | None = None
    ) -> SnapshotRef:
        """Make what was changed a version: see :meth:`Files.save`."""
        return await self._do(lambda files: files.save(label, metadata, key))

    async def discard(self) -> None:
        """Forget what wasn't saved."""
        await self._do(lambda files: files.discard())

    async def refresh(self) -> None:
        """Move to the newest version."""
        await self._do(lambda files: files.thread.refresh())

    async def diff(
        self, a: AnyVersion | SnapshotRef | None, b: AnyVersion | SnapshotRef | None = None
    ) -> FilesDiff:
        """What differs between two versions: see :meth:`Files.diff`."""
        return await self._do(lambda files: files.diff(a, b))

    async def rewind(self, version: AnyVersion | SnapshotRef) -> SnapshotRef:
        """Go back to an earlier version: see :meth:`Files.rewind`."""
        return await self._do(lambda files: files.rewind(version))

    async def save_directory(self, path: AnyPath, label: str | None = None) -> Saved:
        """Make the tree what a directory holds: see :meth:`Files.save_directory`."""
        return await self._do(lambda files: files.save_directory(path, label))

    async def restore_directory(self, path: AnyPath, at: AnyVersion | SnapshotRef | None = None) -> Restored:
        """Make a directory what the tree is: see :meth:`Files.restore_directory`."""
        return await self._do(lambda files: files.restore_directory(path, at))

    def __repr__(self) -> str:
        return f"<files of {self.thread.name!r}>"


class AsyncLocalSandboxes:
    """As :class:`LocalSandboxes`, on an async store: every call is awaited."""

    def __init__(self, store: Any, root: AnyPath, *, limits: FileLimits = DEFAULT_FILE_LIMITS) -> None:
        if getattr(getattr(store, "core", None), "run_blocking", None) is None:
            raise UsageError("AsyncLocalSandboxes() takes an async store: await everthread.open_async(…)")
        self._run: Callable[..., Any] = store.core.run_blocking
        self._root = root
        self._limits = limits

    async def _do(self, call: Callable[[LocalSandboxes], T]) -> T:
        made: T = await self._run(lambda store: call(LocalSandboxes(store, self._root, limits=self._limits)))
        return made

    async def base(self, recipe: str, seed: Callable[[str], Any]) -> SnapshotRef:
        """The base snapshot of a recipe: see :meth:`LocalSandboxes.base`. ``seed`` is an ordinary function,
        and runs on a worker thread."""
        return await self._do(lambda sandboxes: sandboxes.base(recipe, seed))

    async def open(self, sandbox_id: str, *, session: Any = None, **options: Any) -> AsyncSandbox:
        """Enter a sandbox: see :meth:`LocalSandboxes.open`, which takes the same options. A ``session`` is
        that of an async store."""
        if isinstance(source := options.get("source"), AsyncSandbox):
            options["source"] = source.sandbox
        made = await self._do(lambda sandboxes: sandboxes.open(sandbox_id, **options))
        if session is not None and made.is_owned:
            await session.sandbox_ready(made.id, None if made.base is None else made.base.plain())
        return AsyncSandbox(self._run, made, session)


class AsyncSandbox(AwaitedFace):
    """As :class:`Sandbox`: use it with ``async with``, or close it."""

    def __init__(self, run: Callable[..., Any], sandbox: Sandbox, session: Any) -> None:
        self._run = run
        self._session = session
        #: The blocking one.
        self.sandbox = sandbox
        self.id = sandbox.id
        self.path = sandbox.path
        self._lock = threading.Lock()

    @property
    def last(self) -> Saved | None:
        """The report of the last save, which names what was left out."""
        return self.sandbox.last

    @property
    def set_aside(self) -> str | None:
        """The path of the directory that was set aside because it couldn't be saved as a whole."""
        return self.sandbox.set_aside

    async def _do(self, call: Callable[[Sandbox], T]) -> T:
        def work(store: Any) -> T:
            with self._lock:
                return call(self.sandbox)

        made: T = await self._run(work)
        return made

    @asynccontextmanager
    async def working(self) -> AsyncIterator[str]:
        """Run something in the directory: see :meth:`Sandbox.working`."""
        await self._do(lambda sandbox: sandbox.mark_dirty())
        yield self.path

    async def save(self, label: str | None = None) -> SnapshotRef:
        """Make the directory, as it is, a version."""
        return await self._do(lambda sandbox: sandbox.save(label))

    async def discard(self) -> None:
        """Make the directory what the newest version is."""
        await self._do(lambda sandbox: sandbox.discard())

    async def close(self) -> SnapshotRef | None:
        """Leave the sandbox as its ``shutdown`` says; the snapshot that this made."""
        made = await self._do(lambda sandbox: sandbox.close())
        if made is not None and self._session is not None:
            self._session.exit_snapshot = made.plain()
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self.sandbox)


class AsyncWorkspace(AwaitedFace):
    """As :class:`Workspace`: what ``await thread.attach_workspace(path)`` gives."""

    def __init__(self, thread: AsyncThread, workspace: Workspace) -> None:
        self._thread = thread
        self._workspace = workspace
        self.path = workspace.path

    async def _do(self, call: Callable[[Workspace], T]) -> T:
        return await on_worker(self._thread, lambda store: call(self._workspace))

    @property
    def last(self) -> Saved | None:
        """What the last save came to."""
        return self._workspace.last

    @property
    def restored(self) -> Restored | None:
        """What the last restore came to."""
        return self._workspace.restored

    async def interrupted(self) -> Interrupted | None:
        """The restore that was cut short, if there is one."""
        return await self._do(lambda workspace: workspace.interrupted())

    async def save(self, label: str | None = None) -> Saved:
        """Record the folder as it is now: see :meth:`Workspace.save`."""
        return await self._do(lambda workspace: workspace.save(label))

    async def undo(self) -> Restored:
        """Bring back what was there before a restore that was cut short."""
        return await self._do(lambda workspace: workspace.undo())

    async def record(self, since: str | None) -> str:
        """For the thread, before it commits: see :meth:`Workspace.record`."""
        return await self._do(lambda workspace: workspace.record(since))

    async def begin(self, version: str) -> Restored:
        """Make the folder what the files were at a version; until :meth:`finish` it counts as under way."""
        return await self._do(lambda workspace: workspace.begin(version))

    async def finish(self) -> None:
        """The restore is complete."""
        await self._do(lambda workspace: workspace.finish())

    def __repr__(self) -> str:
        return repr(self._workspace)


class AsyncWorkspaces:
    """Opens the working folders of threads of an async store: see ``core.open_workspaces``."""

    async def open(self, thread: AsyncThread, path: AnyPath, options: dict[str, Any]) -> AsyncWorkspace:
        uid = thread.uid or ""
        made = await on_worker(thread, lambda store: Workspace(store.core, uid, path, **options))
        return AsyncWorkspace(thread, made)

    async def open_fork(
        self, thread: AsyncThread, path: AnyPath, version: str | None, options: dict[str, Any]
    ) -> AsyncWorkspace:
        uid = thread.uid or ""

        def work(store: Any) -> Workspace:
            made = Workspace(store.core, uid, check_empty(path), **options)
            made.fill(version)
            return made

        return AsyncWorkspace(thread, await on_worker(thread, work))

    async def check_empty(self, thread: AsyncThread, path: AnyPath) -> None:
        await on_worker(thread, lambda store: check_empty(path))

    async def compare(
        self, thread: AsyncThread, a: RecordedFiles | None, b: RecordedFiles | None
    ) -> FilesDiff:
        return await on_worker(thread, lambda store: compare_versions(store.core, a, b))
