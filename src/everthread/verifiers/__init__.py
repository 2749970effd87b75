"""Checks that a recorded fact still agrees with reality. Stored by name with arguments, never as code."""

from __future__ import annotations

from everthread.verifiers.checking import capture, check, check_all
from everthread.verifiers.commands import command
from everthread.verifiers.files import file_hash
from everthread.verifiers.git import git_branch, git_commit
from everthread.verifiers.processes import process_alive
from everthread.verifiers.registry import by_name, register
from everthread.verifiers.specs import Spec
from everthread.verifiers.verdicts import Status, Verdict
from everthread.verifiers.web import http_status

__all__ = [
    "Spec",
    "Status",
    "Verdict",
    "by_name",
    "capture",
    "check",
    "check_all",
    "command",
    "file_hash",
    "git_branch",
    "git_commit",
    "http_status",
    "process_alive",
    "register",
]
