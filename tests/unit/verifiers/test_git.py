"""git_branch and git_commit, on real repositories."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from everthread import verifiers


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "first")
    return folder


def git(folder: Path, *words: str) -> str:
    settings = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *settings, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, text: str) -> str:
    git(folder, "commit", "--quiet", "--allow-empty", "-m", text)
    return git(folder, "rev-parse", "HEAD")


def verdict(stored: dict[str, object]) -> tuple[str, str]:
    found = verifiers.check(stored, None)
    return found.status.value, found.reason


def test_the_branch(repo: Path) -> None:
    stored = verifiers.capture(verifiers.git_branch(repo), "main")
    assert verdict(stored) == ("fresh", f"{repo} is on main")
    commit(repo, "second")
    assert verdict(stored)[0] == "fresh"
    git(repo, "switch", "--quiet", "-c", "fix/1")
    assert verdict(stored) == ("contradicted", f"{repo} is on fix/1, it was on main")
    git(repo, "switch", "--quiet", "--detach")
    assert verdict(stored) == ("contradicted", f"{repo} is on no branch, it was on main")
    detached = verifiers.capture(verifiers.git_branch(repo), None)
    assert verdict(detached)[0] == "fresh"


def test_the_commit(repo: Path) -> None:
    first = git(repo, "rev-parse", "HEAD")
    stored = verifiers.capture(verifiers.git_commit(repo), None)
    assert stored["expected"]["commit"] == first
    assert verdict(stored)[0] == "fresh"
    second = commit(repo, "second")
    assert verdict(stored) == ("contradicted", f"{repo} is at {second[:12]}, it was at {first[:12]}")
    short = verifiers.capture(verifiers.git_commit(repo, commit=second[:8]), None)
    assert verdict(short)[0] == "fresh"


def test_the_current_folder_is_the_default(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo)
    branch = verifiers.capture(verifiers.git_branch(), None)
    wanted = verifiers.capture(verifiers.git_branch(branch="release"), None)
    commit_now = verifiers.capture(verifiers.git_commit(), None)
    monkeypatch.chdir("/")
    assert verdict(branch)[0] == verdict(commit_now)[0] == "fresh"
    assert verdict(wanted)[0] == "contradicted"


def test_what_is_no_repository(tmp_path: Path) -> None:
    for spec in (verifiers.git_branch(tmp_path), verifiers.git_commit(tmp_path / "nowhere")):
        stored = verifiers.capture(spec, None)
        assert stored["problem"]
        assert verdict(stored)[0] == "unverifiable"


def test_the_environment_does_not_lead_git_astray(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = verifiers.capture(verifiers.git_commit(repo), None)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_WORK_TREE", "/nowhere")
    assert verdict(stored)[0] == "fresh"


def test_a_repository_can_not_make_git_run_anything(repo: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {ran}\n")
    script.chmod(0o755)
    for key in ("core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "diff.external"):
        git(repo, "config", key, str(script))
    git(repo, "config", "alias.symbolic-ref", f"!{script}")
    for hook in ("post-checkout", "reference-transaction", "post-index-change"):
        (repo / ".git" / "hooks" / hook).write_text(script.read_text())
        (repo / ".git" / "hooks" / hook).chmod(0o755)
    # A commit that isn't there, in a repository that would fetch it through a program of its own.
    git(repo, "config", "extensions.partialClone", "origin")
    git(repo, "config", "remote.origin.url", "ssh://nowhere.invalid/x")
    git(repo, "config", "remote.origin.promisor", "true")
    (repo / ".git" / "refs" / "heads" / "main").write_text("1234567890" * 4 + "\n")
    ran.unlink(missing_ok=True)
    for spec in (verifiers.git_branch(repo), verifiers.git_commit(repo)):
        verdict(verifiers.capture(spec, None))
    assert not ran.exists()


@pytest.mark.parametrize("repo", ["--upload-pack=touch ran", "-", "\n", "x" * 5000])
def test_hostile_folders_are_no_options(repo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, field in (("git_branch", "branch"), ("git_commit", "commit")):
        stored = {"name": name, "args": {}, "expected": {"repo": repo, field: "main"}}
        assert verdict(stored)[0] == "unverifiable"
    assert list(tmp_path.iterdir()) == []
