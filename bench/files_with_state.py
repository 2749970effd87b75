"""Files with state: what saving a sandbox, recording a working folder and keeping a hundred turns cost.

    python -m bench.files_with_state [--repository .] [--turns 100] [--rounds 15] [--seed 1] [--quick]

A directory of 2,000 files and 20 MB with three changed is saved, and packed as tar.gz, in turns. A working
folder of 5,000 files with ten changed is recorded with a commit, and looked at by `git status`, in turns.
Then a hundred commits of a real repository are checked out one after another, saved as versions of a thread
and committed to a repository of their own, whose packed objects (`git gc`) the store is compared with.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import tarfile
from pathlib import Path

import everthread
from everthread.sandboxes import Files, LocalSandboxes
from everthread.sandboxes.workspace import files_beside

from . import measure
from .measure import Report, disk_bytes, say, take_turns

WORDS = "state thread version commit fork rewind agent message tool result error return value".split()


def git(folder: Path, *arguments: str) -> str:
    options = ["-c", "user.name=bench", "-c", "user.email=bench@example.org", "-c", "gc.auto=0"]
    return subprocess.run(
        ["git", *options, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def make_tree(root: Path, files: int, mean_bytes: int, rng: random.Random) -> list[Path]:
    """Texts that compress about as source code does, some dozens in a folder."""
    made = []
    for number in range(files):
        path = root / f"package{number // 40}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = max(200, int(rng.expovariate(1 / mean_bytes)))
        lines = []
        while size > 0:
            line = " ".join(rng.choices(WORDS, k=rng.randrange(2, 10))) + f" {rng.randrange(10**6)}"
            lines.append(line)
            size -= len(line) + 1
        path.write_text("\n".join(lines))
        made.append(path)
    return made


def edit(paths: list[Path], rng: random.Random) -> None:
    for path in paths:
        lines = path.read_text().split("\n")
        lines[rng.randrange(len(lines))] = f"changed {rng.randrange(10**9)}"
        path.write_text("\n".join(lines))


def report_sandbox(report: Report, work: Path, rounds: int, rng: random.Random) -> None:
    """2,000 files, 20 MB, three changed: a snapshot and a tar.gz."""
    with everthread.open(f"sqlite:///{work}/sandbox.db") as store:
        box = LocalSandboxes(store, work / "boxes").open("bench", shutdown="keep")
        paths = make_tree(Path(box.path), 2_000, 10_000, rng)
        box.save()
        archive = work / "box.tar.gz"

        def pack() -> None:
            with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
                tar.add(box.path, "box")

        samples: measure.Samples = {}
        before = store.stats().bytes
        for _ in range(rounds):
            edit(rng.sample(paths, 3), rng)
            take_turns(rng, {"save": box.save, "tar.gz": pack}, samples)
        grown = (store.stats().bytes - before) / rounds
        times = {name: statistics.median(each) for name, each in samples.items()}
        size = archive.stat().st_size
        box.close()
    report.goal(
        "a snapshot with 3 of 2,000 files changed ÷ tar.gz, time", times["save"] / times["tar.gz"], 0.3
    )
    report.goal("a snapshot with 3 of 2,000 files changed ÷ tar.gz, bytes", grown / size, 0.02, timed=False)
    rows = [["snapshot", times["save"] / 1e6, int(grown)], ["tar.gz", times["tar.gz"] / 1e6, size]]
    report.table("A sandbox of 2,000 files and 20 MB, three changed", "", ["", "ms", "bytes"], rows)


def report_workspace(report: Report, work: Path, rounds: int, rng: random.Random) -> None:
    """5,000 files, ten changed: a commit that records them, and git status."""
    folder = work / "workspace"
    paths = make_tree(folder, 5_000, 4_000, rng)
    (folder / ".gitignore").write_text("*.log\nbuild/\n__pycache__/\n*.pyc\n.venv\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "all")
    with everthread.open(f"sqlite:///{work}/workspace.db") as store:
        thread = store.thread("bench")
        thread.attach_workspace(folder)
        samples: measure.Samples = {}

        def commit() -> None:
            thread.state["turn"] = rng.random()
            thread.commit()

        for _ in range(rounds):
            git(folder, "add", "-A")
            edit(rng.sample(paths, 10), rng)
            take_turns(rng, {"commit": commit, "git status": lambda: git(folder, "status", "-s")}, samples)
        assert files_beside(store.thread("bench")).diff(None)
    times = {name: statistics.median(each) for name, each in samples.items()}
    share = times["commit"] / times["git status"]
    report.goal("a commit with 10 of 5,000 files changed ÷ git status there", share, 3.0)
    rows = [[name, value / 1e6] for name, value in times.items()]
    report.table("A working folder of 5,000 files, ten changed", "", ["", "ms"], rows)


class _Tracked:
    """All of a checkout but its repository."""

    digest = b"bench"

    def enter(self, prefix: str, fd: int) -> None:
        pass

    def enters(self, text: str, name: str, is_folder: bool) -> bool:
        return name != ".git"

    def objection(self, text: str, data: bytes) -> str | None:
        return None


def report_sizes(report: Report, work: Path, repository: Path, turns: int) -> None:
    """A hundred turns of a real repository's edits: the store, and git's packed objects."""
    from everthread.sandboxes.directory import save_directory
    from everthread.sandboxes.stat_cache import StatCache

    checkout, packed = work / "checkout", work / "packed"
    git(work, "clone", "-q", "--shared", "--no-checkout", str(repository), str(checkout))
    commits = git(checkout, "rev-list", "--first-parent", "-n", str(turns), "HEAD").split()[::-1]
    packed.mkdir()
    git(packed, "init", "-q")
    place = work / "sizes.db"
    changed = 0
    with everthread.open(f"sqlite:///{place}", durability="process") as store:
        files, cache = Files(store.thread("bench")), StatCache()
        for number, commit in enumerate(commits):
            git(checkout, "checkout", "-q", commit)
            saved = save_directory(files, checkout, cache=cache, choice=_Tracked())
            changed += saved.added + saved.changed
            there = f"--git-dir={packed / '.git'}"
            git(checkout, there, f"--work-tree={checkout}", "add", "-A", "-f", ".", ":!.git")
            git(packed, "commit", "-q", "--allow-empty", "-m", f"turn {number}")
        kinds = dict(store.stats().kinds)
    git(packed, "gc", "-q", "--prune=now")
    objects = sum(path.stat().st_size for path in (packed / ".git" / "objects").rglob("*") if path.is_file())
    ours = disk_bytes(place)
    report.goal(
        f"{len(commits)} turns of a repository's edits ÷ git's packed objects",
        ours / objects,
        2.0,
        timed=False,
    )
    rows = [
        ["store, on disk", ours],
        ["git, packed", objects],
        *([kind, size] for kind, size in kinds.items()),
    ]
    report.table(f"{len(commits)} turns, {changed:,} files written", "", ["", "bytes"], rows)


def main() -> None:
    """Parse the command line, run, write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.files_with_state", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--repository", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and turns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument("--work", help="directory for scratch files, on the disk to be measured")
    options = parser.parse_args()
    rounds, turns = (5, 20) if options.quick else (options.rounds, options.turns)
    with measure.workplace(options.work) as work:
        report = Report("Files with state", measure.environment(work, options.seed))
        say(f"scratch files in {work}, {os.cpu_count()} cores")
        with report.watched("sandbox"):
            report_sandbox(report, work, rounds, random.Random(options.seed))
        with report.watched("workspace"):
            report_workspace(report, work, rounds, random.Random(options.seed))
        with report.watched("sizes"):
            report_sizes(report, work, options.repository, turns)
    report.write(options.out, "files_with_state")
    print(report.markdown())


if __name__ == "__main__":
    main()
