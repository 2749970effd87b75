"""Files whose versions are the versions of a thread: virtual file systems, sandboxes, working folders."""

from everthread.sandboxes.aio import AsyncFiles, AsyncLocalSandboxes, AsyncSandbox, AsyncWorkspace
from everthread.sandboxes.directory import Restored, Saved
from everthread.sandboxes.files import FileLimits, Files, FilesView, SnapshotRef
from everthread.sandboxes.local import LocalSandboxes, Sandbox
from everthread.sandboxes.tree import FileInfo, FilesDiff
from everthread.sandboxes.workspace import Interrupted, Workspace

__all__ = [
    "AsyncFiles",
    "AsyncLocalSandboxes",
    "AsyncSandbox",
    "AsyncWorkspace",
    "FileInfo",
    "FileLimits",
    "Files",
    "FilesDiff",
    "FilesView",
    "Interrupted",
    "LocalSandboxes",
    "Restored",
    "Sandbox",
    "Saved",
    "SnapshotRef",
    "Workspace",
]
