"""Checks that a recorded fact still agrees with reality. Stored by name with arguments, never as code."""

from __future__ import annotations

from everthread.verifiers.builtin import (
    command,
    file_hash,
    git_branch,
    git_commit,
    http_status,
    process_alive,
)
from everthread.verifiers.registry import by_name, capture, check, check_all, register
from everthread.verifiers.specs import Spec, Status, Verdict

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
