"""Whether a repository still stands where it stood."""

from __future__ import annotations

import os
from typing import Any

from everthread.arguments import check_path
from everthread.verifiers.permissions import Permissions
from everthread.verifiers.running import NotRunError, Ran, run
from everthread.verifiers.specs import Spec, fields, make_spec
from everthread.verifiers.verdicts import Verdict, contradicted, fresh, unverifiable

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
