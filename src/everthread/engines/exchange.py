"""What the loop of an agent and its callers hand to each other. Nothing here does anything; most of it can be
handed to an activity, or returned by one, as it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from everthread.engines.pointers import ThreadRef
from everthread.errors import InvalidValueError

RUNNING: Final = "running"
WAITING: Final = "waiting_for_input"


# ── what a model and tools are given, and answer ─────────────────────────────────────────────────


@dataclass(frozen=True)
class Turn:
    """What the model is asked with. It can be handed to an activity as it is.

    ``ref`` is where the workflow stands, ``key`` the key of the model's step. ``message_id`` is the id of the
    answer, made before the call: a replay, a reset, and a turn that is asked again use the same.
    ``tools`` are the definitions of this turn. ``number`` counts every turn, also those taken back.
    """

    ref: ThreadRef
    number: int
    message_id: str
    key: list[Any]
    tools: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class ToolRequest:
    """A tool call as the model asks for it."""

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What the model's step came to: where it left the thread, what it said, which tools it wants, and what
    that used: ``{"input_tokens": 812}``."""

    ref: ThreadRef
    text: str | None = None
    calls: list[ToolRequest] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ToolCall:
    """What a tool is given. It can be handed to an activity as it is.

    ``ref``, ``key`` and ``slot`` are for its step. ``before`` is the version before the model asked: a
    subagent that forks there sees no call without a result.
    """

    ref: ThreadRef
    before: ThreadRef
    turn: int
    key: list[Any]
    slot: int
    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rewind:
    """Returned by a tool: the turn is taken back, with everything that it did to the thread, and the model is
    asked again under the same message id. The turn stays counted, so that no tool can go on like this for
    ever."""

    reason: str = ""


@dataclass(frozen=True)
class WaitForInput:
    """Returned by a tool: after this turn the run waits for a message. ``content`` is the tool's result,
    unless ``ref`` says that the tool has written it itself."""

    content: Any = "Asked. The answer comes as a message."
    ref: ThreadRef | None = None


@dataclass(frozen=True)
class Tool:
    """A tool: an async function of a :class:`ToolCall`, and what the model is told of it.

    ``schema`` is a JSON Schema, or a class with ``model_json_schema()``: arguments that don't fit are the
    tool's result, in words for the model, and it isn't called. One that isn't ``parallel`` runs
    while no other does. It returns the :class:`ThreadRef` of a step that has written its result, or the
    result, which is then appended for it: text, JSON-like data, a whole message (a mapping with a ``role``),
    or the :class:`AgentResult` of a subagent. Or it returns :class:`Rewind` or :class:`WaitForInput`.
    """

    run: Callable[[ToolCall], Any]
    description: str = ""
    schema: Any = None
    parallel: bool = True

    def definition(self, name: str) -> dict[str, Any]:
        schema = self.schema
        if hasattr(schema, "model_json_schema"):
            schema = schema.model_json_schema()
        return {
            "name": name,
            "description": self.description,
            "input_schema": {"type": "object"} if schema is None else schema,
        }


@dataclass(frozen=True)
class SubagentTask:
    """What the child workflow of a subagent is given. It can be handed to it as it is.

    ``id`` is an id for the child workflow: the same after a replay. The child opens its thread with
    ``open_thread(task.thread, mode=task.mode, source=task.source)``.
    """

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    thread: str | None = None
    mode: str = "new"
    source: ThreadRef | None = None
    sandbox: str = "none"
    sandbox_id: str | None = None

    def sandbox_or(self, own: Sandbox) -> Sandbox | None:
        """Return the sandbox for ``run_agent(sandbox=…)``: none, the parent's, or ``own``."""
        if self.sandbox == "inherit":
            return Sandbox(id=self.sandbox_id)
        return own if self.sandbox == "own" else None


@dataclass(frozen=True)
class SubagentTool(Tool):
    """A tool whose work a child workflow does. ``run`` is an async function of a :class:`SubagentTask` that
    returns the child's :class:`AgentResult`; usage and turns of the child are added to the parent's.

    ``thread``: ``"new"`` gives each call a thread; ``"continue"`` goes on with the one that the subagent had
    last in this run; ``"fork"`` forks the parent's before the call; ``"parent"`` goes on with the parent's
    thread itself, and such a tool runs while no other does. ``sandbox``: ``"none"``, ``"inherit"`` for the
    parent's, or ``"own"``. ``destroy(id)`` shuts down, when the parent ends, a sandbox that the child left to
    it with ``Sandbox(at_end="parent")``.
    """

    thread: Literal["new", "continue", "fork", "parent"] = "new"
    sandbox: Literal["none", "inherit", "own"] = "none"
    destroy: Callable[[str], Awaitable[Any]] | None = None

    def __post_init__(self) -> None:
        if self.thread not in ("new", "continue", "fork", "parent"):
            raise InvalidValueError('thread must be "new", "continue", "fork" or "parent"', path="thread")
        if self.sandbox not in ("none", "inherit", "own"):
            raise InvalidValueError('sandbox must be "none", "inherit" or "own"', path="sandbox")
        if self.thread == "parent":
            object.__setattr__(self, "parallel", False)

    def task(self, call: ToolCall, last: ThreadRef | None, sandbox_id: str | None) -> SubagentTask:
        """Return what the child of a call is given; ``last`` is where the child before it ended."""
        place: tuple[str | None, str, ThreadRef | None] = (None, "new", None)
        if self.thread == "fork":
            place = (None, "fork", call.before)
        elif self.thread == "parent":
            place = (call.ref.thread, "continue", call.ref)
        elif self.thread == "continue" and last is not None:
            place = (last.thread, "continue", last)
        name, mode, source = place
        return SubagentTask(
            id=f"{call.ref.thread}/{call.name}/{call.turn}.{call.slot}",
            name=call.name,
            arguments=call.arguments,
            thread=name,
            mode=mode,
            source=source,
            sandbox=self.sandbox,
            sandbox_id=sandbox_id,
        )


#: By name; a plain async function is a tool without a description.
Tools = Mapping[str, "Tool | Callable[[ToolCall], Any]"]


# ── what an engine has to offer ──────────────────────────────────────────────────────────────────


class Engine(Protocol):
    """The verbs that the loop needs. Each is a step: done once, whatever is replayed."""

    def append(
        self,
        ref: ThreadRef,
        message: Mapping[str, Any],
        *,
        key: Sequence[Any] | None = None,
        slot: int | None = None,
    ) -> Awaitable[ThreadRef]:
        """Append a message under its id. One that is there already changes nothing, not the pointer either.
        ``key`` and ``slot`` are those of a tool."""

    def rewind(self, ref: ThreadRef, to: ThreadRef) -> Awaitable[ThreadRef]:
        """Go back from ``ref`` to ``to``."""

    def end(
        self,
        ref: ThreadRef,
        reason: str,
        error: BaseException | None = None,
        *,
        agent: str | None = None,
        turns: int | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> Awaitable[ThreadRef]:
        """Record how the run ended, the error that it failed with, and what it used."""

    def load(self, ref: ThreadRef) -> Awaitable[Mapping[str, Any]]:
        """Tasks and custom fields at ``ref``."""

    def save(self, ref: ThreadRef, update: Mapping[str, Any], *, key: Sequence[Any]) -> Awaitable[ThreadRef]:
        """Assign tasks and custom fields."""


# ── sandboxes ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Sandbox:
    """A sandbox as the loop needs it: functions of yours, each an activity or a step.

    With ``id`` it is somebody else's, and only used. Otherwise ``create(restore)`` makes one and gives its
    id; it is owned by the run. At its end the run calls ``destroy(id)``, with ``at_end="snapshot"`` after
    ``snapshot(id)``; if that fails the sandbox is left alone, because nothing else holds its files.
    ``"keep"`` leaves it running, ``"pause"`` calls ``pause(id)``, and ``"parent"``, in a subagent, leaves it
    until the parent ends. A ``lazy`` one is created when the first subagent inherits it.
    """

    create: Callable[[Any], Awaitable[str]] | None = None
    destroy: Callable[[str], Awaitable[Any]] | None = None
    snapshot: Callable[[str], Awaitable[Any]] | None = None
    id: str | None = None
    restore: Any = None
    at_end: Literal["destroy", "snapshot", "keep", "pause", "parent"] = "destroy"
    pause: Callable[[str], Awaitable[Any]] | None = None
    lazy: bool = False

    def __post_init__(self) -> None:
        if self.at_end not in ("destroy", "snapshot", "keep", "pause", "parent"):
            raise InvalidValueError(
                'at_end must be "destroy", "snapshot", "keep", "pause" or "parent"', path="sandbox.at_end"
            )
        if self.at_end == "pause" and self.pause is None:
            raise InvalidValueError('at_end="pause" needs pause=', path="sandbox.pause")
        if self.id is None and (self.create is None or self.destroy is None):
            raise InvalidValueError(
                "a sandbox of one's own needs create= and destroy=; one of somebody else's has an id",
                path="sandbox",
            )
        if self.at_end == "snapshot" and self.snapshot is None:
            raise InvalidValueError('at_end="snapshot" needs snapshot=', path="sandbox.snapshot")


# ── what a run comes to ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Carry:
    """What a run hands to the one that goes on for it (continue-as-new): ``run_agent(carry=…)``."""

    ref: ThreadRef
    turns: int = 0
    usage: dict[str, Any] = field(default_factory=dict)
    status: str = RUNNING
    text: str | None = None
    taken: list[str] = field(default_factory=list)
    sandbox_id: str | None = None
    message_id: str | None = None
    subagent_turns: int = 0
    #: Where the subagents ended last, by name.
    children: dict[str, ThreadRef] = field(default_factory=dict)
    #: The sandboxes that subagents left to this run: name of the tool, and id.
    left: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True)
class AgentResult:
    """How a run ended. ``text`` is the model's last message, ``None`` if it said nothing.

    ``reason`` is ``completed``, ``max_turns`` or ``waiting_for_input``; what failed or was cancelled raises.
    It is ``None`` if the run is to go on in another one: then ``carry`` is what that needs. ``warnings``
    tells what went wrong at the end. ``usage`` includes that of subagents; their turns are
    ``subagent_turns``, which no limit of this run counts. ``left_sandbox`` is the sandbox that a subagent
    left to its parent.
    """

    ref: ThreadRef | None
    text: str | None = None
    reason: str | None = None
    turns: int = 0
    usage: dict[str, Any] = field(default_factory=dict)
    sandbox_id: str | None = None
    snapshot: Any = None
    warnings: list[str] = field(default_factory=list)
    carry: Carry | None = None
    subagent_turns: int = 0
    left_sandbox: str | None = None
