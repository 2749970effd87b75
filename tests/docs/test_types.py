"""What a type checker says of code that uses the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.docs.test_blocks import ROOT, blocks

KEPT = """
import everthread


def pay(invoice: str) -> int:
    return len(invoice)


async def send(invoice: str) -> bytes:
    return invoice.encode()


def blocking(s: everthread.AgentSession, thread: everthread.Thread) -> None:
    reveal_type(s.call("k", pay, "817"))
    reveal_type(thread.commit().seq)
    reveal_type(thread.update(lambda draft: None).id)
    reveal_type(s.save())


async def awaited(s: everthread.AsyncAgentSession, thread: everthread.AsyncThread) -> None:
    reveal_type(await s.call("k", pay, "817"))
    reveal_type(await s.call("k", send, "817"))
    reveal_type((await thread.commit()).seq)
"""


def checked(folder: Path, code: str) -> str:
    """What mypy --strict says of a module; its notes too."""
    (folder / "used.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]
    places = ["--cache-dir", str(ROOT / ".mypy_cache"), "--follow-imports", "silent"]
    return subprocess.run(
        [*command, *places, str(folder / "used.py")], cwd=ROOT, capture_output=True, text=True
    ).stdout


def test_the_example_of_the_readme_is_typed_and_results_keep_their_types(tmp_path: Path) -> None:
    (example,) = (block.code for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")))
    # One run of the checker for both: it costs seconds.
    told = checked(
        tmp_path,
        example
        + KEPT.replace("import everthread\n", "").replace("def pay", "def paid").replace("pay,", "paid,"),
    )
    assert "error:" not in told
    assert re.findall(r'Revealed type is "(?:builtins\.)?([\w.]+)"', told) == [
        "int",
        "int",
        "str",
        "everthread.versions.Version",
        "int",
        "bytes",
        "int",
    ]
