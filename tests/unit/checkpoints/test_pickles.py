"""Pickles: nothing of one that we didn't sign is ever looked at."""

from __future__ import annotations

import hmac
import os
import pickle
import random
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Checkpointable, CheckpointManager
from everthread.checkpoints.pickles import PickleSigner, key_path

SOURCE = Path(everthread.__file__).parents[1]

#: The lists of those who ask at the moment.
LISTENERS: list[list[str]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    for events in LISTENERS:
        events.append(event)


# Can't be taken away again, so it only notes while somebody asks.
sys.addaudithook(_audit)


@contextmanager
def audited() -> Iterator[list[str]]:
    """The events that the interpreter sees in the block."""
    events: list[str] = []
    LISTENERS.append(events)
    try:
        yield events
    finally:
        LISTENERS.remove(events)


class Evil:
    """What an attacker would have us unpickle."""

    def __reduce__(self) -> Any:
        return (os.system, ("echo pwned > pwned",))


class Thing:
    def __init__(self, value: Any) -> None:
        self.value = value


class Agent(Checkpointable):
    def __init__(self) -> None:
        self.step = 0
        self.thing: Any = Thing([1])


@pytest.fixture
def signer(tmp_path: Path) -> PickleSigner:
    return PickleSigner(tmp_path / "home" / "signing" / "pickle.key")


def refused(signer: PickleSigner, payload: Any) -> list[str]:
    """Load what must be refused; returns the events that the interpreter saw meanwhile."""
    with audited() as events, pytest.raises((everthread.AccessError, everthread.StateCorruptedError)):
        signer.load(payload)
    return events


def dangerous(events: list[str]) -> set[str]:
    return {event for event in events if event.startswith(("pickle", "import", "os.", "exec", "subprocess"))}


def test_what_is_signed_comes_back(signer: PickleSigner) -> None:
    payload = signer.dump({"thing": Thing([1, {2}])})
    assert PickleSigner(signer.path).load(payload)["thing"].value == [1, {2}]


def test_the_audit_sees_what_a_pickle_does(signer: PickleSigner) -> None:
    payload = signer.dump({"thing": Thing(1)})
    with audited() as events:
        signer.load(payload)
    assert "pickle.find_class" in events


def test_unsigned_pickles_are_refused_unread(signer: PickleSigner, tmp_path: Path) -> None:
    signer.dump({})
    evil = pickle.dumps({"x": Evil()})
    good = signer.dump({"x": 1})
    head = len(good) - len(pickle.dumps({"x": 1}, protocol=5))
    for payload in (
        b"",
        evil,
        b"\x80\x05",
        good[:head] + evil,
        good[: head - 32] + bytes(32) + evil,
        good[:head],
    ):
        assert not dangerous(refused(signer, payload))
    for payload in (None, "text", bytearray(good), 5):
        assert not dangerous(refused(signer, payload))
    assert not (tmp_path / "pwned").exists()


def test_every_altered_byte_is_noticed(signer: PickleSigner, seed: int) -> None:
    payload = signer.dump({"thing": Thing("some content"), "n": 12345})
    rng = random.Random(seed)
    for at in range(len(payload)):
        altered = bytearray(payload)
        altered[at] ^= 1 << rng.randrange(8)
        assert not dangerous(refused(signer, bytes(altered)))
    for _ in range(50):
        cut = rng.randrange(len(payload))
        refused(signer, payload[:cut])
        refused(signer, payload + rng.randbytes(1 + cut % 9))


def test_another_key_is_told_from_damage(signer: PickleSigner, tmp_path: Path) -> None:
    payload = PickleSigner(tmp_path / "theirs" / "signing" / "pickle.key").dump({"x": Evil()})
    with pytest.raises(everthread.AccessError, match="another key"):
        signer.load(payload)
    signer.dump({})
    with pytest.raises(everthread.AccessError, match="another key"):
        signer.load(payload)
    # Claiming our key doesn't help without having it.
    ours = signer.dump({})
    forged = ours[:28] + hmac.digest(bytes(32), b"x", sha256) + pickle.dumps(Evil())
    with pytest.raises(everthread.StateCorruptedError, match="altered"):
        signer.load(forged)


def test_loading_never_makes_a_key(signer: PickleSigner, tmp_path: Path) -> None:
    payload = PickleSigner(tmp_path / "theirs" / "signing" / "pickle.key").dump({})
    with pytest.raises(everthread.AccessError):
        signer.load(payload)
    assert not signer.path.parent.exists()


def test_the_key_is_for_its_owner_alone(signer: PickleSigner) -> None:
    payload = signer.dump({})
    assert stat.S_IMODE(signer.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(signer.path.parent.stat().st_mode) == 0o700
    assert [path.name for path in signer.path.parent.iterdir()] == ["pickle.key"]
    for path, mode in ((signer.path, 0o640), (signer.path.parent, 0o777), (signer.path.parent.parent, 0o777)):
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        with pytest.raises(everthread.KeyringError, match="chmod"):
            PickleSigner(signer.path).load(payload)
        with pytest.raises(everthread.KeyringError, match="chmod"):
            PickleSigner(signer.path).dump({})
        path.chmod(before)
    assert PickleSigner(signer.path).load(payload) == {}


def test_a_key_that_is_no_key(signer: PickleSigner, tmp_path: Path) -> None:
    signer.dump({})
    signer.path.write_bytes(b"short")
    with pytest.raises(everthread.KeyringError, match="damaged"):
        PickleSigner(signer.path).dump({})
    signer.path.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(bytes(32))
    elsewhere.chmod(0o600)
    signer.path.symlink_to(elsewhere)
    with pytest.raises(everthread.KeyringError, match="can't be read"):
        PickleSigner(signer.path).dump({})


def test_processes_that_begin_at_once_get_one_key(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from everthread.checkpoints.pickles import PickleSigner
sys.stdin.readline()
sys.stdout.write(PickleSigner(Path(sys.argv[1])).dump({})[20:28].hex())
"""
    path = tmp_path / "home" / "signing" / "pickle.key"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", code, str(path)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
        for _ in range(4)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    keys = {process.communicate()[0] for process in started}
    assert len(keys) == 1
    assert len(keys.pop()) == 16
    assert [found.name for found in path.parent.iterdir()] == ["pickle.key"]


def test_a_checkpoint_that_was_altered_leaves_the_object_as_it_was(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"
    with CheckpointManager(url, fmt="pickle") as manager, everthread.open(url) as store:
        agent = Agent()
        agent.step = 1
        good = manager.save("k", agent)
        thread = store.thread("checkpoint:k")
        thread.state["pickle"] = pickle.dumps({"x": Evil()})
        thread.commit()
        fresh = Agent()
        thing = fresh.thing
        with pytest.raises(everthread.StateCorruptedError, match="signature"):
            manager.load("k", fresh)
        assert (fresh.step, fresh.thing) == (0, thing)
        assert manager.load("k", Agent(), checkpoint_id=good).step == 1


def test_a_good_pickle_that_is_no_state(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"
    with CheckpointManager(url, fmt="pickle") as manager, everthread.open(url) as store:
        manager.save("k", Agent())
        signer = PickleSigner(key_path())
        for value in ([1], {"a": 1}, {"__class__": 5}):
            thread = store.thread("checkpoint:k")
            thread.state["pickle"] = signer.dump(value)
            thread.commit()
            with pytest.raises(everthread.StateCorruptedError):
                manager.load("k", Agent())


def test_a_class_that_is_gone(signer: PickleSigner, monkeypatch: pytest.MonkeyPatch) -> None:
    class Local:
        pass

    with pytest.raises(everthread.InvalidValueError, match="can't be pickled"):
        signer.dump({"x": Local()})
    payload = signer.dump({"x": Thing(1)})
    monkeypatch.delitem(globals(), "Thing")
    with pytest.raises(everthread.InvalidStateError, match="importable"):
        signer.load(payload)


def test_the_home_is_read_when_the_manager_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        home.mkdir()
    monkeypatch.setenv("HOME", str(homes[0]))
    with CheckpointManager(f"sqlite:///{tmp_path}/agent.db", fmt="pickle") as manager:
        monkeypatch.setenv("HOME", str(homes[1]))
        manager.save("k", Agent())
    assert (homes[0] / ".everthread" / "signing" / "pickle.key").exists()
    assert not list(homes[1].iterdir())
    with (
        CheckpointManager(f"sqlite:///{tmp_path}/agent.db", fmt="pickle") as manager,
        pytest.raises(everthread.AccessError, match="another key"),
    ):
        manager.load("k", Agent())


def test_the_key_never_lies_within_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path, tmp_path / "home", "home/.everthread", ".", tmp_path / "x" / ".."):
        with pytest.raises(everthread.UsageError, match="apart from the data"):
            CheckpointManager("file", path=path, fmt="pickle")


def test_what_is_refused_does_not_even_import_pickle(signer: PickleSigner) -> None:
    payload = signer.dump({"x": Evil()})
    code = """
import sys
from pathlib import Path
from everthread.checkpoints.pickles import PickleSigner
from everthread.errors import StateCorruptedError
signer = PickleSigner(Path(sys.argv[1]))
payload = bytes.fromhex(sys.argv[2])
for altered in (payload[:-1] + b"x", payload[61:], b""):
    try:
        signer.load(altered)
    except StateCorruptedError:
        print("pickle" in sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", code, str(signer.path), payload.hex()]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=signer.path.parent)
    assert found.stdout == "False\n" * 3, found.stderr
    assert [path.name for path in signer.path.parent.iterdir()] == ["pickle.key"]


def test_without_pickle_chosen_nothing_is_pickled(tmp_path: Path) -> None:
    code = """
import sys, everthread
class Agent(everthread.Checkpointable):
    def __init__(self): self.step = 1
with everthread.CheckpointManager(sys.argv[1]) as manager:
    manager.save("k", Agent())
    manager.load("k", Agent())
    with manager.rollback_context("k", Agent()):
        pass
print("pickle" in sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", code, f"sqlite:///{tmp_path}/agent.db"]
    assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout == "False\n"
