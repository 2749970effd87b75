"""Commits until the disk is really full, makes room, and goes on. Run as a program: see ``test_io_errors``.

python full_disk.py URL rlimit BYTES          # no file may grow beyond BYTES
python full_disk.py URL ballast FILE          # FILE takes up space that can be given back
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any

import everthread
from everthread.errors import StorageWriteError

TEXT_BYTES = 9_000
COMMITS_MAX = 5_000


def fill(thread: Any, acknowledged: list[str]) -> str:
    """Commit until there is no room; returns what the error says."""
    for number in range(COMMITS_MAX):
        name = f"m{number}"
        thread.messages.append({"id": name, "text": os.urandom(TEXT_BYTES // 2).hex()})
        thread.state["last"] = name
        try:
            thread.commit()
        except StorageWriteError as error:
            return str(error)
        acknowledged.append(name)
    raise AssertionError("the disk never ran full")


def make_room(how: str, what: str) -> None:
    if how == "rlimit":
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    else:
        os.unlink(what)


def main(url: str, how: str, what: str) -> None:
    # Writing beyond the limit is an error then, rather than the end.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = everthread.open(url)
    thread = store.thread("main")
    if how == "rlimit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(what), resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    acknowledged: list[str] = []
    error = fill(thread, acknowledged)
    readable = [item["id"] for item in store.thread("main").messages]
    make_room(how, what)
    # The change that had no room is still in the handle.
    version = thread.commit()
    after = [item["id"] for item in store.thread("main").messages]
    verified = bool(store.verify())
    store.close()
    with everthread.open(url) as again:
        reopened = [item["id"] for item in again.thread("main").messages]
    print(
        json.dumps(
            {
                "error": error,
                "acknowledged": acknowledged,
                "readable": readable,
                "after": after,
                "reopened": reopened,
                "seq": version.seq if version else None,
                "verified": verified,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
