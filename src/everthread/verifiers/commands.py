"""Whether a command still ends as it should."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Sequence
from typing import Any, TypeGuard

from everthread.arguments import check_path, check_several
from everthread.errors import InvalidValueError
from everthread.verifiers.permissions import Permissions
from everthread.verifiers.running import Ran, run
from everthread.verifiers.specs import Spec, fields, make_spec
from everthread.verifiers.verdicts import Verdict, contradicted, fresh, unverifiable


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
            # Whoever records the fact names the command in its own code: that is permission enough.
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
