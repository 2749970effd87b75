"""What a subagent is given and what comes of it; how its thread and its key are called. No I/O.

Plain dataclasses of JSON-like data: the engines hand them from a workflow to its child and back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from everthread.arguments import NAME_BYTES_MAX, check_name

#: In the metadata of the version that begins a child's work: the uid of its parent's thread, the child's
#: own name (a fork of it has the same metadata, and another name), and what it is called.
PARENT_TAG, CHILD_TAG, AGENT_TAG = "subagent_of", "subagent", "agent"
_TEXT_MAX = 2_000


@dataclass(frozen=True)
class Task:
    """What ``start`` is called with; the same again whenever the call is repeated, after a kill for one.

    Work on ``thread``, in the log ``log``. It exists, at ``version`` when the work begins: a later version
    is what an earlier try has done. ``key`` is this task's alone: for an idempotency key, or the id of a
    child workflow. ``prompt`` is what the parent's model asked for. ``snapshot`` is what the child that this
    one goes on from left of its sandbox.
    """

    name: str
    thread: str
    key: str
    mode: str
    prompt: Any = None
    version: str | None = None
    log: str = "messages"
    parent: str = ""
    parent_version: str | None = None
    call: str = ""
    sandbox: Any = None
    snapshot: Any = None


@dataclass(frozen=True)
class Outcome:
    """What came of a task. ``start`` may return one, to say more than the value; what it leaves out is taken
    from the child's thread and its session.

    ``error`` says why there is no value, in words for the parent's model.
    """

    value: Any = None
    error: str | None = None
    usage: Mapping[str, int | float] = field(default_factory=dict)
    reason: str | None = None
    snapshot: Any = None
    thread: str | None = None
    version: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def text(self) -> str:
        """The value, or the error, as the content of a tool's message."""
        if self.error is not None:
            return self.error
        from everthread.subagents.results import plain_form

        plain = plain_form(self.value)
        return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=str)


def task_key(parent_uid: str, name: str, call: str, seq: int | None, version: str = "") -> str:
    """``seq``: at which version of the parent, where what is repeated is known by its entry there.
    ``version``: what the child goes on from."""
    return _digest(parent_uid, name, call, "" if seq is None else str(seq), version)


def step_key(name: str, call: str) -> tuple[str, str]:
    """The step of the parent that records what came of a call."""
    return ("subagent", _digest(name, call))


def claim_key(key: str) -> str:
    """The commit key of the version with which a child's work begins. ``session(mode="new", key=task.key)``
    goes on with a thread whose first version has it."""
    return f"session:{key}"


def child_name(parent: str, name: str, call: str, suffix: str = "") -> str:
    """The thread of a child: no two calls of one thread, nor two threads, come to the same name."""
    # The last two parts are the subagent's name and the call: neither has a slash of its own.
    made = f"{parent}/{_part(name)}/{_part(call)}" + (f"~{suffix}" if suffix else "")
    if len(made.encode()) <= NAME_BYTES_MAX:
        return made
    return f"subagent/{_digest(parent, name, call, suffix)}"


def log_name(name: str) -> str:
    """The log of a child that works on its parent's own thread."""
    made = f"subagent/{name}"
    return made if len(made.encode()) <= NAME_BYTES_MAX else f"subagent/{_digest(name)}"


def _part(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F").replace("~", "%7E")


def _digest(*parts: str) -> str:
    return sha256(json.dumps(parts).encode()).hexdigest()[:32]


def failure(name: str, error: BaseException) -> str:
    """What a parent's model is told of a child that raised."""
    return shortened(f"The subagent {name!r} failed: {type(error).__name__}: {error}")


def shortened(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"


def check_call(name: str, call: object) -> str:
    """Raises :class:`InvalidNameError` if ``call`` is no id."""
    check_name(name, "the name of a subagent")
    return check_name(call, "the id of a call")
