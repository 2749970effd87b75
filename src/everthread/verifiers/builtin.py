"""The built-in verifiers: processes, commands, Git, files and web servers."""

from __future__ import annotations

import contextlib
import hashlib
import os
import selectors
import shlex
import signal
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import SplitResult, urlsplit

import msgspec

from everthread.arguments import check_path, check_several, counted
from everthread.errors import InvalidValueError
from everthread.values import Personal
from everthread.verifiers.specs import (
    Permissions,
    Spec,
    Verdict,
    contradicted,
    fields,
    fresh,
    make_spec,
    unverifiable,
)

if TYPE_CHECKING:
    import subprocess
    from http.client import HTTPConnection

# ── running a program, with bounds on its time and output, never through a shell ──────────────────

OUTPUT_BYTES_MAX = 1 << 20


class Ran(msgspec.Struct, frozen=True):
    """How a program ended. ``status`` is negative if a signal ended it."""

    status: int
    output: bytes


class NotRunError(Exception):
    """The program could not be run to its end within its bounds; says why."""


def run(
    argv: Sequence[str], *, timeout_s: float, cwd: str | None = None, env: Mapping[str, str] | None = None
) -> Ran:
    """Run a program to its end. Raises :class:`NotRunError` if it can't be started, takes longer than
    ``timeout_s`` or writes more than a megabyte; it and its process group are killed then."""
    import subprocess

    until = time.monotonic() + timeout_s
    try:
        process = subprocess.Popen(  # noqa: S603 - an argument list, and the caller has permission
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=cwd,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise NotRunError(f"{argv[0]} can't be started: {error}") from None
    try:
        output = _read(process.stdout, until)
        status = process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise NotRunError(f"{argv[0]} took longer than {timeout_s:g} s and was stopped") from None
    finally:
        _stop(process)
    return Ran(status, output)


def _read(stream: Any, until: float) -> bytes:
    """All that the stream gives before the deadline, within bounds."""
    found = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            left = until - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise NotRunError("it took too long and was stopped")
            block = os.read(stream.fileno(), 1 << 16)
            if not block:
                return bytes(found)
            found += block
            if len(found) > OUTPUT_BYTES_MAX:
                raise NotRunError(f"it wrote more than {OUTPUT_BYTES_MAX:,} bytes and was stopped")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a process group that was started here."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


# ── is a process still alive, and the same one? ─────────────────────────────────────────────────────


def process_alive(pid: int | None = None) -> Spec:
    """Holds while the process lives. Without a pid the value of the fact is the pid.

    Host and start are recorded: another process that got the number later doesn't pass for it.
    """
    return make_spec("process_alive", {"pid": pid})


class ProcessAlive:
    """The verifier behind :func:`process_alive`."""

    def capture(self, value: Any, args: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        pid = args.get("pid", value)
        if type(pid) is not int or pid <= 0:
            raise InvalidValueError("neither an argument nor the value of the fact is a process id")
        started = _started(pid, timeout_s)
        if started is None:
            raise InvalidValueError(f"no process {pid} is alive")
        return {"pid": pid, "started": started, "host": os.uname().nodename}

    def check(
        self, value: Any, args: dict[str, Any], expected: Any, allowed: Permissions, timeout_s: float
    ) -> Verdict:
        pid, started, host = fields(expected, "pid", "started", "host")
        if type(pid) is not int or pid <= 0 or not isinstance(started, str) or not isinstance(host, str):
            return unverifiable("what was recorded of the process is not understood")
        if host != os.uname().nodename:
            return unverifiable(f"process {pid} ran on {host}, this is {os.uname().nodename}")
        now = _started(pid, timeout_s)
        if now is None:
            return contradicted(f"process {pid} is gone")
        if now != started:
            return contradicted(f"process {pid} is another one: the number was given away again")
        return fresh(f"process {pid} is alive")


def _started(pid: int, timeout_s: float) -> str | None:
    """When the process started, as this system tells it; None if it isn't alive."""
    if Path("/proc/self/stat").exists():
        return _started_by_proc(pid)
    ran = run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], timeout_s=timeout_s)
    state, _, started = ran.output.decode(errors="replace").strip().partition(" ")
    return None if ran.status != 0 or not started or state.startswith("Z") else started.strip()


def _started_by_proc(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError):
        _check_hidden(pid)
        return None
    # The name of the program, in brackets, may contain anything; what follows is fixed.
    fields = text.rpartition(")")[2].split()
    state, ticks = fields[0], fields[19]
    # A zombie has ended and only waits for its parent to notice.
    return None if state in "ZXx" else f"{boot}:{ticks}"


def _check_hidden(pid: int) -> None:
    """Raise if there is such a process after all and this system doesn't let us look at it."""
    try:
        # Signal 0 asks and does nothing.
        os.kill(pid, 0)
    except ProcessLookupError:
        return
    raise PermissionError(f"process {pid} exists but can't be looked at")


# ── does a command still end as it should? ──────────────────────────────────────────────────────────


def command(
    argv: str | Sequence[str],
    *,
    exit_status: int = 0,
    same_output: bool = False,
    cwd: str | os.PathLike[str] | None = None,
) -> Spec:
    """Holds while the command ends with ``exit_status`` and, if asked for, writes what it writes now.

    A text is split into words; no shell ever sees it. The command runs in ``cwd``, by default the folder in
    which the fact was recorded. On resuming it is run only if the reader allows it there, since what is
    stored may come from elsewhere.
    """
    if isinstance(argv, str):
        argv = shlex.split(argv)
    check_several(argv, "argv", "a program and its arguments")
    words = [check_path(part, "argv") if isinstance(part, os.PathLike) else part for part in argv]
    if not _is_argv(words):
        raise InvalidValueError("a command needs a program and its arguments, as text", path="verify")
    folder = None if cwd is None else check_path(cwd, "cwd")
    args = {"argv": words, "exit_status": exit_status, "same_output": same_output, "cwd": folder}
    return make_spec("command", args)


class Command:
    """The verifier behind :func:`command`."""

    def capture(self, value: Any, args: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        expected: dict[str, Any] = {"cwd": os.path.abspath(args.get("cwd") or ".")}
        if args.get("same_output"):
            # The code that records the fact names the command itself: that is permission enough.
            ran = run(args["argv"], timeout_s=timeout_s, cwd=expected["cwd"])
            expected["output_sha256"] = _digest(ran)
        return expected

    def check(
        self, value: Any, args: dict[str, Any], expected: Any, allowed: Permissions, timeout_s: float
    ) -> Verdict:
        argv, wanted = args.get("argv"), args.get("exit_status", 0)
        cwd, output = fields(expected, "cwd", "output_sha256")
        if not _is_argv(argv) or type(wanted) is not int or not isinstance(cwd, str):
            return unverifiable("the stored command is not understood")
        shown = shlex.join(argv)
        if not allowed.permits(argv):
            return unverifiable(f"stored commands run only if the reader says allow_commands: {shown}")
        ran = run(argv, timeout_s=timeout_s, cwd=cwd)
        if ran.status != wanted:
            return contradicted(f"exit status {ran.status}, expected {wanted}: {shown}")
        if output is not None and output != _digest(ran):
            return contradicted(f"it writes something else than it did: {shown}")
        return fresh(f"exit status {ran.status}: {shown}")


def _is_argv(argv: Any) -> TypeGuard[list[str]]:
    return (
        isinstance(argv, list)
        and bool(argv)
        and bool(argv[0])
        and all(isinstance(part, str) and "\0" not in part for part in argv)
    )


def _digest(ran: Ran) -> str:
    return hashlib.sha256(ran.output).hexdigest()


# ── is a repository where it was? ───────────────────────────────────────────────────────────────────


#: What a repository's own settings could make git run, switched off. Nothing is fetched.
_SAFE_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-optional-locks")
_SAFE_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


def git_branch(repo: str | os.PathLike[str] | None = None, *, branch: str | None = None) -> Spec:
    """Holds while ``repo`` (by default the current folder) is on ``branch`` (by default the present one)."""
    return make_spec(
        "git_branch", {"repo": None if repo is None else check_path(repo, "repo"), "branch": branch}
    )


def git_commit(repo: str | os.PathLike[str] | None = None, *, commit: str | None = None) -> Spec:
    """Holds while ``repo`` (by default the current folder) is at ``commit`` (by default the present one)."""
    return make_spec(
        "git_commit", {"repo": None if repo is None else check_path(repo, "repo"), "commit": commit}
    )


class GitBranch:
    """The verifier behind :func:`git_branch`."""

    def capture(self, value: Any, args: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        repo = _repo(args)
        return {"repo": repo, "branch": args.get("branch") or _branch(repo, timeout_s)}

    def check(
        self, value: Any, args: dict[str, Any], expected: Any, allowed: Permissions, timeout_s: float
    ) -> Verdict:
        repo, branch = fields(expected, "repo", "branch")
        if not isinstance(repo, str) or not isinstance(branch, str):
            return unverifiable("what was recorded of the branch is not understood")
        now = _branch(repo, timeout_s)
        if now != branch:
            return contradicted(f"{repo} is on {now or 'no branch'}, it was on {branch or 'no branch'}")
        return fresh(f"{repo} is on {branch or 'no branch'}")


class GitCommit:
    """The verifier behind :func:`git_commit`."""

    def capture(self, value: Any, args: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        repo = _repo(args)
        return {"repo": repo, "commit": args.get("commit") or _commit(repo, timeout_s)}

    def check(
        self, value: Any, args: dict[str, Any], expected: Any, allowed: Permissions, timeout_s: float
    ) -> Verdict:
        repo, commit = fields(expected, "repo", "commit")
        if not isinstance(repo, str) or not isinstance(commit, str) or len(commit) < 4:
            return unverifiable("what was recorded of the commit is not understood")
        now = _commit(repo, timeout_s)
        # An abbreviated commit may have been given.
        if not now.startswith(commit.lower()):
            return contradicted(f"{repo} is at {now[:12]}, it was at {commit[:12]}")
        return fresh(f"{repo} is at {now[:12]}")


def _repo(args: dict[str, Any]) -> str:
    return os.path.abspath(str(args.get("repo") or "."))


def _branch(repo: str, timeout_s: float) -> str:
    """The branch that HEAD names, empty if it names none. A branch without commits counts."""
    ran = _git(repo, "symbolic-ref", "--quiet", "--short", "HEAD", timeout_s=timeout_s)
    if ran.status not in (0, 1):
        raise NotRunError(f"{repo} is no repository that git reads")
    return ran.output.decode(errors="replace").strip()


def _commit(repo: str, timeout_s: float) -> str:
    """The full name of HEAD's commit. No object is looked at, so nothing can be fetched for it."""
    ran = _git(repo, "rev-parse", "--verify", "--quiet", "HEAD", timeout_s=timeout_s)
    if ran.status != 0:
        raise NotRunError(f"{repo} is no repository that git reads, or it has no commit")
    return ran.output.decode(errors="replace").strip()


def _git(repo: str, *words: str, timeout_s: float) -> Ran:
    # Variables such as GIT_DIR would point it elsewhere; hooks set them.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", repo, *_SAFE_OPTIONS, *words]
    return run(command, timeout_s=timeout_s, env=environment | _SAFE_ENVIRONMENT)


# ── does a file have the content that it had? ───────────────────────────────────────────────────────


_CHUNK_BYTES = 1 << 20


def file_hash(path: str | os.PathLike[str] | None = None) -> Spec:
    """Holds while the file has the size and SHA-256 that it has now.

    Without a path the value of the fact is the path. A relative path is looked up from the folder in which
    the fact was recorded.
    """
    return make_spec("file_hash", {"path": None if path is None else check_path(path)})


class FileHash:
    """The verifier behind :func:`file_hash`."""

    def capture(self, value: Any, args: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        path = os.path.abspath(path_of(value, args))
        with _Regular(path, timeout_s) as file:
            size, digest = file.digest()
        return {"path": path, "size": size, "sha256": digest}

    def check(
        self, value: Any, args: dict[str, Any], expected: Any, allowed: Permissions, timeout_s: float
    ) -> Verdict:
        path, size, digest = fields(expected, "path", "size", "sha256")
        if not isinstance(path, str) or not isinstance(size, int) or not isinstance(digest, str):
            return unverifiable("what was recorded of the file is not understood")
        try:
            with _Regular(path, timeout_s) as file:
                if file.size != size:
                    return contradicted(f"{counted(file.size, 'byte')}, were {size:,}: {path}")
                if file.digest() != (size, digest):
                    return contradicted(f"content changed: {path}")
        except FileNotFoundError:
            return contradicted(f"gone: {path}")
        return fresh(f"unchanged, sha256 {digest[:12]}: {path}")


def path_of(value: Any, args: dict[str, Any]) -> str:
    """The path in the arguments, else in the value itself."""
    path = args.get("path")
    if path is None:
        if isinstance(value, Personal):
            # Recorded beside the fact, in clear.
            raise InvalidValueError("the value is personal and isn't used as a path; name the path")
        path = value
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidValueError("neither an argument nor the value of the fact is a path")
    return path


class _Regular:
    """A regular file, open for reading. A pipe or a device could block, or never end."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self._until = time.monotonic() + timeout_s
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(self._fd)
            if not stat.S_ISREG(found.st_mode):
                raise InvalidValueError(f"{path} is not a regular file")
        except BaseException:
            os.close(self._fd)
            raise
        self.size = found.st_size

    def digest(self) -> tuple[int, str]:
        """Size and SHA-256 of what is read; a file that grows meanwhile has the size that was read."""
        digest, size = hashlib.sha256(), 0
        while block := os.read(self._fd, _CHUNK_BYTES):
            digest.update(block)
            size += len(block)
            if time.monotonic() > self._until:
                raise TimeoutError(f"hashing {self.size:,} bytes took too long")
        return size, digest.hexdigest()

    def __enter__(self) -> _Regular:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


# ── does a server answer as it did? ─────────────────────────────────────────────────────────────────


def http_status(url: str | None = None, status: int | None = None) -> Spec:
    """Holds while a GET of ``url`` is answered with ``status``, by default the one it is answered with now.

    Without a URL the value of the fact is the URL. Redirects aren't followed, to whatever host: a redirect is
    an answer like any other. No cookies, credentials or proxies are used and the body isn't read.
    """
    if url is not None:
        _split(url)
    return make_spec("http_status", {"url": url, "status": status})


class HttpStatus:
    """The verifier behind :func:`http_status`."""

    def capture(self, value: Any, args: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        url = args.get("url", value)
        if not isinstance(url, str):
            raise InvalidValueError("neither an argument nor the value of the fact is a URL")
        status = args.get("status")
        return {"url": url, "status": _get(url, timeout_s) if status is None else status}

    def check(
        self, value: Any, args: dict[str, Any], expected: Any, allowed: Permissions, timeout_s: float
    ) -> Verdict:
        url, status = fields(expected, "url", "status")
        if not isinstance(url, str) or type(status) is not int:
            return unverifiable("what was recorded of the server is not understood")
        if not allowed.network:
            return unverifiable(f"the reader doesn't allow requests: {url}")
        try:
            now = _get(url, timeout_s)
        except ConnectionRefusedError:
            return contradicted(f"nothing listens at {url}")
        if now != status:
            return contradicted(f"{url} answers {now}, it answered {status}")
        return fresh(f"{url} answers {now}")


def _split(url: str) -> SplitResult:
    if not isinstance(url, str):
        raise InvalidValueError(f"a URL is text, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise InvalidValueError("this is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidValueError("a URL to verify begins with http:// or https:// and names a host")
    if parts.username is not None or parts.password is not None:
        raise InvalidValueError("a URL to verify carries no credentials: it is stored in clear")
    return parts


def _get(url: str, timeout_s: float) -> int:
    """The status of one GET."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    parts = _split(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection: HTTPConnection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    with contextlib.closing(connection):
        try:
            connection.request("GET", target, headers={"User-Agent": "everthread", "Connection": "close"})
            return connection.getresponse().status
        except HTTPException as error:
            raise InvalidValueError(f"the answer isn't HTTP ({type(error).__name__})") from None
