"""The examples run as a reader of the README runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import everthread

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = Path(everthread.__file__).parents[1]


def run(name: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TMPDIR": str(folder)}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


PAID = ["817", "818", "819", "820", "821"]


def test_quickstart_is_killed_while_it_waits_and_pays_nothing_twice(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(EXAMPLES / "quickstart.py")]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        paid = re.findall(r"paying (\d+)", agent.stdout.readline() + _killed_while_it_waits(agent, tmp_path))
    assert agent.returncode == -signal.SIGKILL
    assert paid == PAID[: len(paid)] != PAID
    found = run("quickstart.py", folder=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    assert paid + re.findall(r"paying (\d+)", found.stdout) == PAID
    settled = found.stdout.partition("(done, don't repeat it)\n")[2]
    assert re.findall(r"^\[pay (\d+) ", settled, re.MULTILINE) == PAID[::-1]
    assert "Last: run 1 crashed" in found.stdout
    with everthread.open(f"sqlite:///{tmp_path}/agent.db") as store:
        records = store.session_records("invoice-bot")
        assert [effect.state for effect in records.effects(limit=None)] == ["done"] * 5
        assert [run.status for run in records.runs(limit=None)] == ["completed", "crashed"]


def _killed_while_it_waits(agent: subprocess.Popen[str], folder: Path) -> str:
    """Kill the program while no payment is under way, as a reader does; what it printed since the first."""
    assert agent.stdout is not None
    while agent.poll() is None:
        # Stopped, so that it can't go on between the look and the kill, however busy the machine is.
        agent.send_signal(signal.SIGSTOP)
        with everthread.open(f"sqlite:///{folder}/agent.db") as store:
            records = store.session_records("invoice-bot")
            if records.effect_count and not records.open_effects():
                agent.kill()
                return agent.stdout.read()
        agent.send_signal(signal.SIGCONT)
        time.sleep(0.05)
    raise AssertionError("it ended before it could be killed")


def test_demo_kills_and_loses_nothing(tmp_path: Path) -> None:
    found = run("killed.py", folder=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stderr == ""
    lines = found.stdout.splitlines()
    assert sum("kill -9" in line for line in lines) == 2
    assert sum(line.endswith(", killed") for line in lines) == 8
    assert not [line for line in lines if line.strip().startswith("NO:")]
    assert lines[-1] == "Nothing was lost."
    # It cleans up after itself.
    assert list(tmp_path.iterdir()) == []


def test_demo_keeps_the_store_if_asked(tmp_path: Path) -> None:
    assert run("killed.py", "--keep", "--seed", "1", folder=tmp_path).returncode == 0
    (folder,) = tmp_path.iterdir()
    with everthread.open(f"sqlite:///{folder}/agent.db") as store:
        assert {info.name for info in store.threads()} == {"counter", "invoice-bot", "invoice-bot-what-if"}
        assert store.verify().ok


def test_resume(tmp_path: Path) -> None:
    found = run("resume.py", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "run 1 crashed" in found.stdout
    assert "1 call in doubt: pay-2" in found.stdout
    assert "1 fact contradicted: rates" in found.stdout
    assert found.stdout.endswith("3 payments, 0 made twice\n")
    assert list(tmp_path.iterdir()) == []


def test_events(tmp_path: Path) -> None:
    found = run("events.py", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "27 events, numbered without gaps up to 27",
        "done: [0, 1, 2, 3, 4, 5, 6, 7, 8]",
        "task 9: agent 0 at event 28",
        "the mailer goes on with event 5",
    ]
    assert list(tmp_path.iterdir()) == []


def test_checkpoints(tmp_path: Path) -> None:
    for run_number in (1, 2):
        found = run("checkpoints.py", folder=tmp_path)
        booked = list(range(1, 2 * run_number + 1))
        assert (found.returncode, found.stdout.splitlines()) == (
            0,
            [
                f"found {len(booked) - 2} bookings: {booked[:-2]}",
                f"rolled back: a negative amount; booked is {booked} again",
                f"checkpoints: {2 * run_number}",
                "not saved yet: {}",
            ],
        ), found.stderr


def test_session(tmp_path: Path) -> None:
    found = run("session.py", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "the agent died: SIGKILL",
        "status: crashed, in turn 2",
        "undecided: ['book them']",
        "['fetch invoices: done', 'book them: done', 'report: done']",
        "runs: ['completed', 'completed', 'crashed'], turns: 4, usage: {'output_tokens': 30}",
    ]
    assert list(tmp_path.iterdir()) == []


def test_async_session(tmp_path: Path) -> None:
    found = run("async_session.py", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[:3] == ["Lisbon: 21 °C", "Oslo: 21 °C", "Turin: 21 °C"]
    assert lines[3] == "fetched 3 times in two runs"
    assert lines[4].startswith("completed, 1 todo, briefing of ")


def test_effects(tmp_path: Path) -> None:
    found = run("effects.py", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "in doubt: pay-2",
        "receipt 1",
        "receipt 2, found at the bank",
        "receipt 3",
        "at the bank: ['1', '2', '3']",
    ]
    assert list(tmp_path.iterdir()) == []


def test_working_state(tmp_path: Path) -> None:
    texts = []
    for _ in range(5):
        found = run("working_state.py", folder=tmp_path)
        assert (found.returncode, found.stderr) == (0, "")
        texts.append(found.stdout)
    assert texts[0].splitlines() == ["planned three months", "~1 todos, +1 open loops, +1 intentions"]
    assert all(text.startswith("resumed ") for text in texts[1:])
    assert "all done; of 3 todos at first: ~3 todos, +3 open loops, +3 intentions" in texts[3]
    assert texts[4].splitlines()[-4:] == texts[3].splitlines()[-4:]


def test_threads(tmp_path: Path) -> None:
    found = run("threads.py", folder=tmp_path)
    assert (found.returncode, found.stderr) == (0, ""), found.stderr


def test_lifetimes(tmp_path: Path) -> None:
    found = run("lifetimes.py", folder=tmp_path)
    assert (found.returncode, found.stderr) == (0, ""), found.stderr


def test_every_example_is_run() -> None:
    told = Path(__file__).read_text(encoding="utf-8")
    rows = (Path(__file__).parents[1] / "features").glob("test_*.py")
    features = "".join(path.read_text(encoding="utf-8") for path in rows)
    pages = (Path(__file__).parents[1] / "docs").glob("test_*format.py")
    docs = "".join(page.read_text(encoding="utf-8") for page in pages)
    for example in EXAMPLES.glob("*.py"):
        used = example.name in told + features or f"import {example.stem}" in docs
        assert used, f"no test runs {example.name}"


def test_messages(tmp_path: Path) -> None:
    found = run("messages.py", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "Anthropic: ['user', 'assistant', 'user']" in found.stdout
    assert "signed thinking unchanged: True" in found.stdout
    assert "the call of 'ledger' was never answered" in found.stdout
    assert found.stdout.endswith("2 dropped\n")


def test_frameworks(tmp_path: Path) -> None:
    found = run("frameworks.py", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "the fork has 2 messages" in found.stdout
    assert found.stdout.count("['Nothing is open.']") == 2


def test_readers_without_a_store_say_how_they_are_called(tmp_path: Path) -> None:
    for name in ("reader.py", "file_reader.py"):
        found = run(name, folder=tmp_path)
        assert found.returncode == 1
        assert f"python examples/{name}" in found.stderr
        assert "Traceback" not in found.stderr


def test_temporal_agent(tmp_path: Path, temporal_address: str) -> None:
    found = run("temporal_agent.py", temporal_address, folder=tmp_path)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0] == "the worker died: SIGKILL"
    told = lines[1:8]
    assert told == [
        "  system: You know the weather.",
        "  user: Is it mild?",
        "  assistant: I look.",
        "  tool: Lisbon: 21 °C",
        "  tool: Oslo: 21 °C",
        "  tool: Turin: 21 °C",
        "  assistant: It is mild in 3 cities.",
    ]
    assert lines[8].startswith("reset: from version ")
    assert lines[9:] == told


def test_dbos_agent(tmp_path: Path) -> None:
    found = run("dbos_agent.py", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0] == "the process died: SIGKILL"
    told = lines[1:8]
    assert [line.split(":")[0].strip() for line in told] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "tool",
        "assistant",
    ]
    assert told[-1] == "  assistant: It is mild in 3 cities."
    assert lines[8:] == ["forked: weather and one of its own", *told, "rewound", *told]


def test_agent_loop(tmp_path: Path, temporal_address: str) -> None:
    found = run("agent_loop.py", temporal_address, folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "completed after 4 turns, 400 tokens; told: True",
        "  system: You book journeys.",
        "  user: Somewhere mild, please.",
        "  assistant: I look.",
        "  tool: Oslo, turn 2: 21 °C",
        "  tool: Lisbon, turn 2: 21 °C",
        "  tool: checked",
        "  assistant: Shall I book Lisbon?",
        "  tool: asked",
        "  user: Yes.",
        "  assistant: Booked.",
    ]
