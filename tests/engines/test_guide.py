"""The program of the guide runs as it is printed, on a real server, as often as somebody starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import everthread
from tests.docs.test_blocks import ROOT, blocks


def test_the_guide_s_program_runs_twice(temporal_address: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "temporal.md").read_text(encoding="utf-8")
    program = "".join(block.code for block in blocks(page))
    # The server is shared by all tests.
    workflow = f"weather-{os.urandom(4).hex()}"
    program = program.replace("localhost:7233", temporal_address).replace("weather-1", workflow)
    program = program.replace('task_queue="agents"', f'task_queue="{workflow}"')
    (tmp_path / "agent.py").write_text(program, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "agent.py"]
    for _ in range(2):
        found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
        assert f"thread='{workflow}'" in found.stdout
        with everthread.open(f"sqlite:///{tmp_path}/agents.db") as store:
            said = [message["content"] for message in store.thread(workflow).messages]
        assert said[1:3] == ["Is it mild?", "I have read 2 messages."]
        assert said[-1] == "I have read 5 messages."
