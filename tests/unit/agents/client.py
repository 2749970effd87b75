"""A client of `everthread mcp` over pipes, without the SDK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import everthread

SOURCE = Path(everthread.__file__).parents[1]


class Client:
    """The server as a process of its own, and requests to it one after the other."""

    def __init__(self, folder: Path, **environment: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERTHREAD_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "everthread.cli", "mcp"],
            cwd=folder,
            env={**kept, "PYTHONPATH": str(SOURCE), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._last_id = 0

    def write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the whole answer to a request."""
        self._last_id += 1
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        self.write(json.dumps(request).encode())
        answer: dict[str, Any] = self.read()
        assert answer["id"] == self._last_id
        return answer

    def result(self, method: str, **params: Any) -> dict[str, Any]:
        answer = self.ask(method, **params)
        assert "result" in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    def call(self, tool: str, **arguments: str) -> str:
        """Return the text of a tool's answer, which must not be an error."""
        result = self.result("tools/call", name=tool, arguments=arguments)
        text: str = result["content"][0]["text"]
        assert not result.get("isError"), text
        return text

    def refusal(self, tool: str, **arguments: str) -> str:
        """Return the text of a tool's answer, which must be an error."""
        result = self.result("tools/call", name=tool, arguments=arguments)
        text: str = result["content"][0]["text"]
        assert result.get("isError"), text
        return text

    def end(self) -> tuple[int, bytes]:
        """Close stdin; the exit code and what was written to stderr."""
        _, words = self.process.communicate(timeout=60)
        return self.process.returncode, words


def data(text: str) -> list[dict[str, Any]]:
    """Return the lines of data in an answer."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
