"""Calls that do no harm if they run twice are never in doubt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import everthread


def test_a_repeatable_call_without_a_result_is_run_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/repeatable.db"
    tried = []

    def look_up(number: int) -> int:
        tried.append(number)
        if len(tried) == 1:
            raise TimeoutError
        return number

    with everthread.open(url) as store, store.session("bot") as session:
        with pytest.raises(TimeoutError):
            session.call("rate", look_up, 7, repeatable=True)
        assert session.in_doubt() == []
        assert session.call("rate", look_up, 7, repeatable=True) == 7
        assert session.call("rate", look_up, 7, repeatable=True) == 7
        assert tried == [7, 7], "a recorded result is returned"
        with pytest.raises(everthread.UsageError, match="verify"):
            session.call("other", look_up, 7, repeatable=True, verify=lambda _: True)


def test_a_repeatable_call_that_a_kill_cut_short_is_run_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/killed.db"
    code = (
        "import everthread, os, signal, sys\n"
        "with everthread.open(sys.argv[1]) as store, store.session('bot') as s:\n"
        "    s.call('rate', lambda: os.kill(os.getpid(), signal.SIGKILL), repeatable=True)\n"
    )
    subprocess.run([sys.executable, "-c", code, url], check=False, timeout=120)
    with everthread.open(url) as store, store.session("bot") as session:
        assert [effect.key for effect in session.in_doubt()] == ["rate"]
        assert session.call("rate", lambda: 7, repeatable=True) == 7
