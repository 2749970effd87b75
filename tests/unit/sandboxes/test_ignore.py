"""Rules of ``.gitignore`` files: a working folder records what git would add, and no rule takes for ever."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

import everthread

RULES = (
    "*.log", "!keep.log", "/a", "a/", "a/*", "!a/b", "**/b", "a/**", "a/**/b", "a**b", "**a", "/**", "*/b",
    "a//b", "[[:digit:]]", "[\\]]x", "[a\\-c]", "\ufeffa", "a\r", "foo ", "foo\\ ", "\\!a", "\\#a", "!",
    "/", "//", "a/**b", "**/", "a\\", "[!]a]", "[z-a]", "[a", "*[ab]", "?", "a?", "./a", "../a", "a/./b",
    "A", "#a", "foo*bar", "[!ab].log", "*a*b*", "**/a/**/b", "a/**/a/**/b", "*?*?b", "x/", "!x/",
)  # fmt: skip
PARTS = (
    "*", "?", "a", "b", "ab", "**", "/", "[ab]", "[!a]", "[^a]", "[a-c]", "[[:alpha:]]", "[]a]", "\\*",
    "\\a", " ", "\\ ", "!", "#", ".", "x.log", "é", "{a,b}", "[", "\\",
)  # fmt: skip
NAMES = (
    "a", "b", "ab", "c", "a.log", "keep.log", "x.log", "é", "foo", "foo ", "!a", "#a", "1", "]x", "]a", "-",
    "a*b", "axb", "{a,b}", "a\\", "[a", "A", "a-b", "ac/x", "d/a.log", "d/a/b", "d/a/c", "d/b/a",
    "x/a/b/a/b", "x/a.log", "x/keep.log", "foo1/foo/q", "y/a/a/a/b", "y/x/foobar",
)  # fmt: skip


def _recorded(folder: Path) -> set[str]:
    with everthread.open("memory:") as store:
        workspace = store.thread("t").attach_workspace(folder, detectors=[])
        return {each.path for each in workspace.files.list() if each.kind == "file"}


def _added_by_git(folder: Path) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "-z"],
        cwd=folder,
        check=True,
        capture_output=True,
    ).stdout
    return {os.fsdecode(name) for name in listed.split(b"\0") if name}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    made = tmp_path / "repository"
    for name in NAMES:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text("x")
    subprocess.run(["git", "init", "-q"], cwd=made, check=True)
    return made


def test_each_kind_of_rule_means_what_git_takes_it_for(repository: Path) -> None:
    for rule in RULES:
        (repository / ".gitignore").write_text(f"{rule}\n", newline="")
        assert (rule, _recorded(repository)) == (rule, _added_by_git(repository))


def test_random_rules_in_nested_files_mean_what_git_takes_them_for(repository: Path, seed: int) -> None:
    rng = random.Random(seed)

    def rule() -> str:
        made = "".join(rng.choice(PARTS) for _ in range(rng.randint(1, 5)))
        return made if rng.random() < 0.5 else rng.choice(RULES)

    for _ in range(60):
        texts = []
        for name in (".gitignore", "d/.gitignore", "x/a/.gitignore", ".git/info/exclude"):
            texts.append("\n".join(rule() for _ in range(rng.randrange(4))) + "\n")
            (repository / name).write_text(texts[-1], newline="")
        assert (texts, _recorded(repository)) == (texts, _added_by_git(repository))


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ("*a" * 30 + "*b", "a" * 250),
        ("[!b]*" * 40 + "b", "a" * 250),
        ("**/a/" * 30 + "b", "a/" * 60 + "a"),
        ("**/*a*a*/" * 12 + "b", "aaaaaaaaaa/" * 60 + "a"),
        ("*/" * 30 + "**/" * 30 + "b", "a/" * 60 + "a"),
    ],
)
def test_no_rule_takes_longer_the_more_wildcards_it_has(tmp_path: Path, rule: str, path: str) -> None:
    """Tried one after the other, the ways to match these are more than could ever be tried."""
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("x")
    (tmp_path / ".gitignore").write_text(f"{rule}\n")
    assert path in _recorded(tmp_path)


def test_a_rule_file_that_is_a_pipe_or_a_link_is_no_rule_file(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    (work / "a").write_text("x")
    (work / "sub" / "a").write_text("x")
    (tmp_path / "rules").write_text("a\n")
    os.mkfifo(work / ".gitignore")
    (work / "sub" / ".gitignore").symlink_to(tmp_path / "rules")
    assert _recorded(work) == {"a", "sub/a"}
