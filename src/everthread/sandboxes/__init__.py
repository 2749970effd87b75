"""Files whose versions are the versions of a thread: virtual file systems, sandboxes, working folders."""

from everthread.sandboxes.directory import Restored, Saved
from everthread.sandboxes.files import FileLimits, Files, FilesView, SnapshotRef
from everthread.sandboxes.tree import FileInfo, FilesDiff

__all__ = ["FileInfo", "FileLimits", "Files", "FilesDiff", "FilesView", "Restored", "Saved", "SnapshotRef"]
