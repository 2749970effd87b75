"""Files: random trees saved and restored bit by bit, hostile trees refused, deaths at every step.

python -m tests.torture.files --rounds 1000
python -m tests.torture.files --part resets --resets 10 --seed 7

A round changes a random directory (links, modes, renames, names with newlines and bytes that aren't UTF-8,
empty files, and now and then one of 100 MB), saves it, and restores this or an earlier version, which must be
equal bit by bit. Meanwhile another thread swaps folders of a tree that is being saved or restored for links
that lead out: whatever happens, nothing outside may be read or touched. Then every scenario of
``tests.crash.file_kills`` is played with a death at each of its calls. In the end a run on Temporal whose
tools write into a sandbox is reset to random workflow tasks, and so are the runs that this makes; some of
their workers are killed. After each of them the files are what the history of that run says.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import everthread
from everthread import EverthreadError, Retention
from everthread.sandboxes import Files
from everthread.sandboxes.directory import save_directory
from everthread.sandboxes.stat_cache import StatCache
from tests.crash.file_kills import SCENARIOS, kill_at_each_step
from tests.engines.runs import reset, workflow_tasks
from tests.engines.test_workshop import Yard, resettable
from tests.engines.workshop import POINTS, TURNS
from tests.kit.trees import Held, RandomTree, held
from tests.servers.temporal import TemporalServer
from tests.torture._batches import arguments, finish, run_batches, seed_of

PARTS = ("rounds", "hostile", "deaths", "resets")
BATCH = 50
LARGE_BYTES = 100 * 1024 * 1024


def play_rounds(seed: int, rounds: int, large: int) -> tuple[int, list[str]]:
    """Some rounds on one tree; how many, and what differed."""
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="everthread-torture-"))
    failures: list[str] = []
    try:
        with everthread.open(f"sqlite:///{folder}/s.db", durability="process") as store:
            tree, cache = RandomTree(folder / "tree", rng, large=2_000_000), StatCache(str(folder / "stat"))
            for _ in range(40):
                tree.grow()
            if large:
                (folder / "tree" / "large").write_bytes(rng.randbytes(large))
            known: list[tuple[str, Held]] = []
            files = Files(store.thread("t"))
            for number in range(rounds):
                for _ in range(rng.randrange(8)):
                    tree.change()
                if rng.random() < 0.2:
                    files, cache = Files(store.thread("t")), StatCache(str(folder / "stat"))
                saved = save_directory(files, tree.root, cache=cache)
                known.append((saved.snapshot.version, held(folder / "tree")))
                version, expected = rng.choice([known[-1], rng.choice(known)])
                files.restore_directory(folder / "out", at=version)
                if held(folder / "out") != expected:
                    failures.append(f"seed {seed}, round {number}: {version} came back differently")
                shutil.rmtree(folder / "out")
                if rng.random() < 0.05:
                    store.gc(Retention(keep_last=5))
                    known = known[-5:]
            if not store.verify():
                failures.append(f"seed {seed}: verify() finds damage")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rounds, failures


def play_hostile(seed: int, seconds: float) -> tuple[int, list[str]]:
    """Folders are swapped for links that lead out while their tree is saved and restored."""
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="everthread-torture-"))
    outside = folder / "outside"
    outside.mkdir()
    (outside / "secret").write_text("a secret of somebody else")
    before, stop, failures, rounds = held(outside), threading.Event(), [], 0

    def swap(root: Path) -> None:
        while not stop.is_set():
            with suppress(OSError):
                os.rename(root / "d", root / "aside")
                os.symlink(outside, root / "d")
                os.unlink(root / "d")
                os.rename(root / "aside", root / "d")

    root = folder / "work"
    (root / "d").mkdir(parents=True)
    for number in range(30):
        (root / "d" / f"f{number}").write_text("mine")
    try:
        with everthread.open(f"sqlite:///{folder}/s.db", durability="process") as store:
            thread = store.thread("t")
            thread.attach_workspace(root)
            first = thread.head
            swapping = threading.Thread(target=swap, args=(root,))
            swapping.start()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                rounds += 1
                with suppress(OSError):
                    _write(root / "d", f"f{rng.randrange(30)}", f"mine {rng.random()}")
                for work in (thread.commit, lambda: thread.rewind(first or 1, files=True)):
                    with suppress(EverthreadError, OSError):
                        work()
                    thread.discard()
                workspace = thread.attach_workspace(root)
                with suppress(EverthreadError, OSError):
                    if workspace.interrupted() is not None:
                        workspace.undo()
            stop.set()
            swapping.join()
            if held(outside) != before:
                failures.append(f"seed {seed}: something outside was touched")
            if list(store.scan("a secret of somebody else")):
                failures.append(f"seed {seed}: something outside was read")
    finally:
        stop.set()
        shutil.rmtree(folder, ignore_errors=True)
    return rounds, failures


def _write(folder: Path, name: str, text: str) -> None:
    """Write a file of a folder, and never one behind a link that took its place."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644, dir_fd=fd), "w") as file:
            file.write(text)
    finally:
        os.close(fd)


def play_kills(name: str) -> tuple[int, list[str]]:
    """A death at each call of a scenario."""
    scenario = next(each for each in SCENARIOS if each.__name__ == name)
    folder = Path(tempfile.mkdtemp(prefix="everthread-torture-"))
    try:
        return kill_at_each_step(scenario, folder), []
    except AssertionError as error:
        return 0, [f"{name}: {error}"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def play_resets(seed: int, resets: int) -> tuple[int, int, list[str]]:
    """A run on Temporal, reset to random workflow tasks; how often, how many workers died, and what
    differed."""
    folder = Path(tempfile.mkdtemp(prefix="everthread-torture-"))
    server = TemporalServer(folder / "temporal")
    server.start()
    yard = Yard(server.address, folder)
    try:
        return asyncio.run(_reset_runs(yard, random.Random(seed), resets))
    finally:
        yard.stop_workers()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def _reset_runs(yard: Yard, rng: random.Random, resets: int) -> tuple[int, int, list[str]]:
    first = await yard.start(list(TURNS))
    await yard.finished(first)
    handle = yard.client.get_workflow_handle(first.id, run_id=first.result_run_id)
    await yard.check_files(handle)
    runs, died, early, failures = [handle], 0, 0, []
    folders = [yard.root, yard.root.with_name("another-machine")]
    for number in range(resets):
        source, point = rng.choice(runs), None
        tasks = resettable(workflow_tasks(await source.fetch_history()))
        if number % 5 == 2:
            # In the first half, so that each kind of tool is still to come.
            tasks, point = tasks[: len(tasks) // 2], rng.choice(POINTS)
            yard.world.set_trap(point)
        if rng.random() < 0.3:
            yard.stop_workers()
            yard.root = rng.choice(folders)
        event_id = rng.choice(tasks)
        runs.append(await reset(yard.client, source, event_id))
        if point is None and rng.random() < 0.3:
            # The next reset finds it at work.
            if not yard.living_workers():
                yard.start_process()
            await asyncio.sleep(rng.random() * 2)
            if tasks := resettable(workflow_tasks(await runs[-1].fetch_history())):
                runs[-1], early = await reset(yard.client, runs[-1], rng.choice(tasks)), early + 1
        await yard.finished(runs[-1])
        killed, died = len(yard.world.notes("trapped")) - died, len(yard.world.notes("trapped"))
        where = f"reset {number}, of run {runs.index(source)} to event {event_id}, killed at {point}"
        print(where, flush=True)
        if killed != (point is not None):
            failures.append(f"{where}: {killed} workers died")
        try:
            await yard.check_files(runs[-1])
        except AssertionError as error:
            failures.append(f"{where}: {error}")
    return resets + early, died, failures


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--part", choices=PARTS, default=None)
    parser.add_argument("--rounds", type=int, default=1_000, help="trees saved and restored")
    parser.add_argument("--hostile", type=float, default=60.0, help="seconds of folders swapped for links")
    parser.add_argument("--resets", type=int, default=10, help="resets of a run on Temporal")
    options = parser.parse_args()
    seed, parts = seed_of(options), (options.part,) if options.part else PARTS
    failures: list[str] = []
    if "rounds" in parts:
        batches = [
            (seed + number, BATCH, LARGE_BYTES if number % 10 == 0 else 0)
            for number in range((options.rounds + BATCH - 1) // BATCH)
        ]
        total = 0
        for rounds, found in run_batches(play_rounds, batches, options.jobs):
            total += rounds
            failures += found
            print(f"{total:,} rounds, {len(failures)} that differ", flush=True)
    if "hostile" in parts:
        rounds, found = play_hostile(seed, options.hostile)
        failures += found
        print(f"{rounds:,} rounds against a hostile neighbour, {len(found)} got through", flush=True)
    if "deaths" in parts:
        for deaths, found in run_batches(play_kills, [(each.__name__,) for each in SCENARIOS], options.jobs):
            failures += found
            print(f"{deaths:,} deaths, {len(found)} left a mixture", flush=True)
    if "resets" in parts:
        resets, died, found = play_resets(seed, options.resets)
        failures += found
        print(f"{resets:,} resets, {died} workers killed, {len(found)} with other files", flush=True)
    return finish(failures, "python -m tests.torture.files --seed SEED")


if __name__ == "__main__":
    # Neither the user's stores nor settings.
    for variable in [each for each in os.environ if each.startswith("EVERTHREAD_")]:
        del os.environ[variable]
    os.environ["HOME"] = tempfile.mkdtemp(prefix="everthread-torture-home-")
    sys.exit(main())
