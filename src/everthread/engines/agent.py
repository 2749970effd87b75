"""``run_agent``: a session loop over plain awaitables, for the code of a workflow or for none.

It imports no engine and knows nothing but its arguments: no clock, no random ids, no store. Replayed with the
same results it asks for the same things in the same order. What it needs of an engine are the verbs of
:class:`Engine`.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from inspect import isawaitable
from typing import Any, Final, TypeVar, cast

from everthread.arguments import check_mapping
from everthread.engines.exchange import (
    RUNNING,
    WAITING,
    AgentResult,
    Answer,
    Carry,
    Engine,
    Rewind,
    Sandbox,
    SubagentTask,
    SubagentTool,
    Tool,
    ToolCall,
    ToolRequest,
    Tools,
    Turn,
    WaitForInput,
)
from everthread.engines.failures import own_failure
from everthread.engines.inbox import Inbox, Source, checked_id
from everthread.engines.pointers import ThreadRef, latest
from everthread.engines.state import AgentState
from everthread.engines.tool_arguments import mismatch
from everthread.errors import InvalidValueError, ToolVetoError, UsageError
from everthread.hooks import hooks_of
from everthread.sessions.effects import ToolUse
from everthread.sessions.records import Reason
from everthread.sessions.tasks import custom_part, slice_of
from everthread.sessions.usage import Usage, checked_counts

T = TypeVar("T")

#: So many ids of messages that were taken are remembered over continue-as-new.
_REMEMBERED = 500

_log = logging.getLogger(__name__)


# ── the loop ─────────────────────────────────────────────────────────────────────────────────────


async def run_agent(
    ref: ThreadRef | Awaitable[ThreadRef] | None = None,
    *,
    model: Callable[[Turn], Awaitable[Answer]],
    tools: Tools | Callable[[AgentState], Tools] | None = None,
    message: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    engine: Engine | None = None,
    hooks: Any = None,
    max_turns: int | None = None,
    inbox: Source | None = None,
    chat: bool = False,
    wait_s: float | None = None,
    state: AgentState | None = None,
    sandbox: Sandbox | None = None,
    files: Callable[[ThreadRef], Any] | None = None,
    recover: Callable[[ToolCall, Exception], Any] | None = None,
    recycle: Callable[[], bool] | None = None,
    carry: Carry | None = None,
    options: Mapping[str, Any] | None = None,
) -> AgentResult:
    """Ask the model, run the tools it wants, and so on until it wants none.

    ``ref`` is where the thread stands, or the awaitable that opens it: ``open_thread(mode="fork", …)``.
    ``message`` is what is new: appended once, before the first turn. ``tools`` by name, or a function that
    gives those of the next turn. ``hooks`` by the names of :class:`SessionLifecycle`. After ``max_turns``
    turns it ends. Messages of ``inbox`` are appended between turns; with ``chat`` an answer isn't the end,
    the next message is waited for, at most ``wait_s`` seconds at a time.

    ``recover`` makes a result of what a tool raised; without it the run fails. ``files`` is called once
    before the loop, and its value is ``state.files``. When ``recycle()`` is true between two turns the run
    stops there, and ``result.carry`` goes on: ``run_agent(carry=…)`` in the next run.

    ``options`` are those of ``workflow.execute_activity()`` for what the loop itself does on Temporal:
    appending, rewinding, saving, ending.

    ``engine`` is a module such as ``everthread.engines.temporal``; inside a workflow of Temporal or DBOS it
    is found. On every path the state is saved, ``on_session_end`` is told, an owned sandbox is shut down and
    ``on_session_exit`` is told, in this order; only then does it return, or raise what happened.
    """
    try:
        if max_turns is not None and (type(max_turns) is not int or max_turns < 1):
            raise InvalidValueError("max_turns is 1 at least", path="max_turns")
        if ref is None and carry is None:
            raise InvalidValueError("run_agent() needs a ThreadRef: open_thread(…) gives one", path="ref")
        messages, verbs = _messages(message), _with_options(engine or _engine_here(), options)
    except Exception:
        if isinstance(ref, Coroutine):
            # Nobody will await it.
            ref.close()
        raise
    run = _Run(
        engine=verbs,
        model=model,
        tools=tools or {},
        hooks=hooks,
        max_turns=max_turns,
        inbox=inbox,
        chat=chat,
        wait_s=wait_s,
        state=state,
        sandbox=sandbox,
        recover=recover,
        recycle=recycle,
        carry=carry,
    )
    return await run.run(ref, messages, files)


class _Run:
    """One call of :func:`run_agent`."""

    def __init__(
        self,
        *,
        engine: Engine,
        model: Callable[[Turn], Awaitable[Answer]],
        tools: Any,
        hooks: Any,
        max_turns: int | None,
        inbox: Source | None,
        chat: bool,
        wait_s: float | None,
        state: AgentState | None,
        sandbox: Sandbox | None,
        recover: Any,
        recycle: Callable[[], bool] | None,
        carry: Carry | None,
    ) -> None:
        self._engine = engine
        self._model = model
        self._tools = tools
        self._hooks = hooks_of(hooks)
        self._max_turns = max_turns
        self._inbox = inbox
        self._chat = chat
        self._wait_s = wait_s
        #: Whether anybody can have tasks and fields: only then they are loaded and saved.
        self._has_state = state is not None
        self.state = AgentState() if state is None else state
        self._sandbox = sandbox
        self._recover = recover
        self._recycle = recycle
        self._carry = carry
        carried = carry or Carry(ThreadRef(""))
        self._before_turns, self._before_usage = carried.turns, Usage(carried.usage)
        self._taken: dict[str, None] = dict.fromkeys(carried.taken)
        self._text = carried.text
        #: The id of the answer that is asked for: the next turn's too, if this one is taken back.
        self._message_id = carried.message_id
        self._closed = False
        #: What the inbox gave, and isn't in the thread yet.
        self._unread: list[Mapping[str, Any] | None] = []
        self._waits = False
        self._owns_sandbox = False
        self._snapshot: Any = None
        self._saved: dict[str, Any] = {}
        self._available: dict[str, Tool] = {}
        #: By their slots: which of the tools that run are over.
        self._over: dict[int, asyncio.Event] = {}
        self._warnings: list[str] = []
        self.state.status = carried.status
        self.state.turns, self.state.usage = carried.turns, Usage(carried.usage)
        self._children, self._left = dict(carried.children), [(name, id_) for name, id_ in carried.left]
        self._left_sandbox: str | None = None
        self._sandbox_turn = asyncio.Lock()
        self.state.subagent_turns = carried.subagent_turns
        self.state.sandbox_id = carried.sandbox_id

    async def run(self, ref: Any, messages: list[Mapping[str, Any]], files: Any) -> AgentResult:
        try:
            await self._begin(ref, messages, files)
            reason = await self._work()
            if reason is None:
                return self._result(None)
        except (Exception, asyncio.CancelledError) as error:
            # Whatever else is raised is no end of the run: the engine takes it out of memory, or goes on
            # with it in another one, or the process ends.
            failure = error if isinstance(error, Exception) and not _is_cancellation(error) else None
            await _to_the_end(self._end("cancelled" if failure is None else "failed", failure))
            raised = error if failure is None else own_failure(failure)
            for warning in self._warnings:
                raised.add_note(warning)
            if raised is error:
                raise
            raise raised from error
        _, cancelled = await _to_the_end(self._end(reason))
        if cancelled is not None:
            raise cancelled
        return self._result(reason)

    def _result(self, reason: Reason | None) -> AgentResult:
        state = self.state
        carry = None
        if reason is None and state.ref is not None:
            carry = Carry(
                ref=state.ref,
                turns=state.turns,
                usage=dict(state.usage),
                status=state.status,
                text=self._text,
                taken=list(self._taken)[-_REMEMBERED:],
                sandbox_id=state.sandbox_id,
                message_id=self._message_id,
                subagent_turns=state.subagent_turns,
                children=dict(self._children),
                left=[list(each) for each in self._left],
            )
        return AgentResult(
            ref=state.ref,
            text=self._text,
            reason=reason,
            turns=state.turns,
            usage=dict(state.usage),
            sandbox_id=state.sandbox_id,
            snapshot=self._snapshot,
            warnings=list(self._warnings),
            carry=carry,
            subagent_turns=state.subagent_turns,
            left_sandbox=self._left_sandbox,
        )

    # ── the beginning ────────────────────────────────────────────────────────────────────────

    async def _begin(self, ref: Any, messages: list[Mapping[str, Any]], files: Any) -> None:
        if self._carry is not None:
            if isawaitable(ref):
                raise UsageError(
                    "a run that goes on has its thread in carry=; leave out the one that opens it"
                )
            self._move(self._carry.ref)
        else:
            await self._open(ref)
        if self._has_state:
            loaded = custom_part(await self._engine.load(self._ref))
            if loaded:
                self.state.merge_update(loaded)
            self._saved = slice_of(copy.deepcopy(loaded))
        if files is not None:
            self.state.files = await _awaited(files(self._ref))
        if self._carry is None:
            await self._fire("on_session_start", self.state)
        await self._enter_sandbox()
        if self._carry is None:
            for slot, message in enumerate(messages):
                given = message if "id" in message else {"id": _id_of(self._ref, "message", slot), **message}
                await self._take(given)

    async def _open(self, ref: Any) -> None:
        cancelled = None
        if isawaitable(ref):
            # Whoever is cancelled meanwhile: the run that the thread belongs to by then has to be ended.
            ref, cancelled = await _to_the_end(ref)
        if not isinstance(ref, ThreadRef):
            raise InvalidValueError(f"ref is a ThreadRef, not {type(ref).__name__}", path="ref")
        self._move(ref)
        if cancelled is not None:
            raise cancelled

    @property
    def _ref(self) -> ThreadRef:
        assert self.state.ref is not None
        return self.state.ref

    def _move(self, ref: ThreadRef) -> None:
        self.state.ref = ref
        self.state.changed()

    async def _enter_sandbox(self) -> None:
        given = self._sandbox
        if given is None:
            return
        if given.id is not None:
            self.state.sandbox_id = given.id
            return
        self._owns_sandbox = True
        if self.state.sandbox_id is not None:
            # The run before has made it, and told of it.
            return
        if not given.lazy:
            await self._create_sandbox(given)

    async def _create_sandbox(self, given: Sandbox) -> None:
        assert given.create is not None
        # Nobody else would ever shut down one that is made just now.
        made, cancelled = await _to_the_end(given.create(given.restore))
        self.state.sandbox_id = made
        if cancelled is not None:
            raise cancelled
        base = None
        if given.restore is None and given.at_end == "snapshot" and given.snapshot is not None:
            base = await given.snapshot(made)
        self.state.changed()
        await self._fire("on_sandbox_ready", made, base)

    # ── turns and what comes between ─────────────────────────────────────────────────────────

    async def _work(self) -> Reason | None:
        """Turn after turn; why it ends, ``None`` if another run is to go on."""
        while True:
            await self._receive(0)
            if self.state.status == WAITING:
                if self._closed:
                    return "completed"
                if self._is_due():
                    # What came in while it was saved is taken first: the next run has another inbox.
                    if await self._save():
                        continue
                    return None
                if self._inbox is None or not await self._receive(self._wait_s):
                    return "completed" if self._closed else "waiting_for_input"
                continue
            if self._max_turns is not None and self.state.turns >= self._max_turns:
                return "max_turns"
            if self._is_due():
                if await self._save():
                    continue
                return None
            # Whoever told something before the last answer is heard.
            if await self._turn() and not await self._receive(0):
                return "completed"

    def _is_due(self) -> bool:
        return self._recycle is not None and self._recycle()

    async def _receive(self, timeout_s: float | None) -> bool:
        """Take what the inbox has; False if nothing came in time."""
        if self._inbox is None or self._closed:
            return False
        found = await self._inbox(timeout_s)
        if found is None:
            self._closed = True
            return False
        self._unread.extend(found)
        while self._unread:
            message = self._unread[0]
            if message is None or await self._take(message):
                self._set_status(RUNNING)
            del self._unread[:1]
        return bool(found)

    async def _take(self, message: Mapping[str, Any]) -> bool:
        """Append a message; whether it is a new one."""
        name = checked_id(message)
        if name in self._taken:
            return False
        before = self._ref
        # Its sender was told that it is kept: a run that is cancelled meanwhile keeps it.
        after, cancelled = await _to_the_end(self._engine.append(before, message))
        self._taken[name] = None
        self._move(after)
        if cancelled is not None:
            raise cancelled
        return after.version != before.version

    def _set_status(self, status: str) -> None:
        if self.state.status != status:
            self.state.status = status
            self.state.changed()

    async def _turn(self) -> bool:
        """One turn; whether the model's answer is the last."""
        state, before, fields = self.state, self._ref, self.state.slice()
        state.turns += 1
        if self._message_id is None:
            self._message_id = _id_of(before, "answer")
        self._available = self._tools_now()
        state.tools = [tool.definition(name) for name, tool in self._available.items()]
        state.changed()
        key = ["turn", state.turns]
        turn = Turn(before, state.turns, self._message_id, [*key, "model"], state.tools)
        await self._fire("on_turn", turn)
        answer = await self._model(turn)
        if not isinstance(answer, Answer):
            raise InvalidValueError(f"model returns an Answer, not {type(answer).__name__}", path="model")
        self._count(answer.usage)
        self._move(answer.ref)
        self._waits = False
        if not await self._run_tools(turn, answer, before):
            # Tasks and fields as they were: what tools changed in them belongs to the turn.
            state._fields = custom_part(fields)
            # To its end, so that a run that is cancelled meanwhile knows where it stands.
            rewound, cancelled = await _to_the_end(self._engine.rewind(answer.ref, before))
            self._move(rewound)
            if cancelled is not None:
                raise cancelled
            return False
        self._text, self._message_id = answer.text, None
        await self._save()
        is_last = not answer.calls
        if self._waits or (is_last and self._chat and self._inbox is not None):
            self._set_status(WAITING)
            return False
        return is_last

    def _count(self, usage: Mapping[str, Any]) -> None:
        self.state.usage = self.state.usage + checked_counts(usage, {})

    # ── tools ────────────────────────────────────────────────────────────────────────────────

    def _tools_now(self) -> dict[str, Tool]:
        given = self._tools(self.state) if callable(self._tools) else self._tools
        check_mapping(given, "tools")
        return {name: tool if isinstance(tool, Tool) else Tool(tool) for name, tool in given.items()}

    async def _run_tools(self, turn: Turn, answer: Answer, before: ThreadRef) -> bool:
        """Run what the model wants; False if one of the tools takes the turn back."""
        for group in self._groups(answer.calls):
            calls = [
                ToolCall(
                    ref=self._ref,
                    before=before,
                    turn=turn.number,
                    key=["turn", turn.number, "tools"],
                    slot=slot,
                    id=wanted.id,
                    name=wanted.name,
                    arguments=wanted.arguments,
                )
                for slot, wanted in group
            ]
            outcomes = await self._together(calls)
            if any(isinstance(outcome, Rewind) for outcome in outcomes):
                return False
            self._move(latest([cast("ThreadRef", outcome) for outcome in outcomes]))
        return True

    def _groups(self, calls: Sequence[ToolRequest]) -> list[list[tuple[int, ToolRequest]]]:
        """Calls that run at the same time, group after group; each with its place among all."""
        groups: list[list[tuple[int, ToolRequest]]] = []
        open_group = False
        for slot, call in enumerate(calls):
            tool = self._available.get(call.name)
            is_parallel = tool is None or tool.parallel
            if not (open_group and is_parallel):
                groups.append([])
            groups[-1].append((slot, call))
            open_group = is_parallel
        return groups

    async def _together(self, calls: list[ToolCall]) -> list[ThreadRef | Rewind]:
        """Run tools at the same time; what they came to, in the order of the calls. If one fails, or takes
        the turn back, the others are cancelled; nobody returns before all of them are over."""
        tasks: list[asyncio.Task[ThreadRef | Rewind]] = []
        self._over = {call.slot: asyncio.Event() for call in calls}

        def stop_others() -> None:
            for task in tasks:
                if task is not asyncio.current_task():
                    task.cancel()

        async def one(call: ToolCall) -> ThreadRef | Rewind:
            try:
                outcome = await self._tool(call)
                if isinstance(outcome, Rewind):
                    await self._in_turn(call)
                    stop_others()
                return outcome
            except Exception:
                await self._in_turn(call)
                stop_others()
                raise
            finally:
                self._over[call.slot].set()

        # In a list, one by one: a set of tasks would have an order of its own in each replay.
        tasks.extend(asyncio.ensure_future(one(call)) for call in calls)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [each for each in found if isinstance(each, BaseException)]
        for failure in failures:
            if not isinstance(failure, Exception | asyncio.CancelledError):
                raise failure
        outcomes = [each for each in found if not isinstance(each, BaseException)]
        if failures and not any(isinstance(outcome, Rewind) for outcome in outcomes):
            # Not that of a tool which was cancelled because another one failed: engines wrap it.
            raise next((each for each in failures if not _is_cancellation(each)), failures[0])
        return outcomes

    async def _in_turn(self, call: ToolCall) -> None:
        """Tools end in any order. Where an engine knows steps by the order in which they begin, what is done
        after a tool waits for those that were called before it: so it is the same in a replay."""
        if getattr(self._engine, "BEGINS_IN_ORDER", False):
            for slot, over in self._over.items():
                if slot < call.slot:
                    await over.wait()

    async def _tool(self, call: ToolCall) -> ThreadRef | Rewind:
        use: dict[str, Any] = {"name": call.name, "kwargs": call.arguments}
        tool = self._available.get(call.name)
        try:
            await self._hooks.fire_async("on_tool_use", ToolUse(phase="pre", **use), passing=(ToolVetoError,))
        except ToolVetoError as veto:
            return await self._told(call, f"The tool was refused: {veto}")
        if tool is None:
            known = ", ".join(self._available) or "none"
            return await self._told(call, f"There is no tool {call.name!r}; there are: {known}.")
        wrong = mismatch(tool.schema, call.arguments)
        if wrong is not None:
            return await self._told(call, f"The tool {call.name!r} was not called: {wrong}.")
        try:
            outcome = await self._run_tool(tool, call)
        except Exception as error:
            await self._fire("on_tool_use", ToolUse(phase="failure", error=error, **use))
            if self._recover is None or _is_cancellation(error):
                raise
            await self._in_turn(call)
            outcome = await _awaited(self._recover(call, error))
        else:
            await self._fire("on_tool_use", ToolUse(phase="post", result=outcome, **use))
        return await self._written(call, outcome)

    async def _run_tool(self, tool: Tool, call: ToolCall) -> Any:
        if not isinstance(tool, SubagentTool):
            return await _awaited(tool.run(call))
        sandbox_id = await self._inherited_sandbox() if tool.sandbox == "inherit" else None
        task = tool.task(call, self._children.get(call.name), sandbox_id)
        start = cast("Callable[[SubagentTask], Any]", tool.run)
        result = await _awaited(start(task))
        if not isinstance(result, AgentResult):
            raise InvalidValueError(
                f"the subagent {call.name!r} must return an AgentResult, not {type(result).__name__}",
                path="tools",
            )
        if result.ref is not None:
            self._children[call.name] = result.ref
        if result.left_sandbox is not None:
            self._left.append((call.name, result.left_sandbox))
        return result

    async def _inherited_sandbox(self) -> str:
        """Return the sandbox of this run; the first subagent that needs one has it created."""
        async with self._sandbox_turn:
            if self.state.sandbox_id is None:
                if self._sandbox is None:
                    raise UsageError(
                        'a subagent with sandbox="inherit" needs a sandbox of the parent: pass '
                        "run_agent(sandbox=Sandbox(create, destroy, lazy=True))"
                    )
                await self._create_sandbox(self._sandbox)
            assert self.state.sandbox_id is not None
            return self.state.sandbox_id

    async def _written(self, call: ToolCall, outcome: Any) -> ThreadRef | Rewind:
        """Where the thread stands once the result is in it."""
        match outcome:
            case ThreadRef() | Rewind():
                return outcome
            case WaitForInput(content=content, ref=written):
                self._waits = True
                return written if written is not None else await self._told(call, content)
            case AgentResult(ref=ref, text=text, usage=usage, turns=turns, subagent_turns=below):
                self._count(usage)
                self.state.subagent_turns += turns + below
                if ref is not None and ref.thread == call.ref.thread:
                    # It went on with this very thread: its result follows what it wrote there.
                    call = replace(call, ref=ref)
                return await self._told(call, text)
        return await self._told(call, outcome)

    async def _told(self, call: ToolCall, content: Any) -> ThreadRef:
        """Append the result of a tool in its name."""
        message: dict[str, Any]
        if isinstance(content, Mapping) and "role" in content:
            message = dict(content)
        else:
            message = {"role": "tool", "tool_call_id": call.id, "content": _text_of(call, content)}
        message.setdefault("id", _id_of(call.ref, "result", call.slot))
        await self._in_turn(call)
        return await self._engine.append(call.ref, message, key=call.key, slot=call.slot)

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    async def _save(self) -> bool:
        """Save tasks and fields that changed; whether there were any."""
        now = self.state.slice() if self._has_state else {}
        update = {
            name: value
            for name, value in now.items()
            if name not in self._saved or self._saved[name] != value
        }
        if update:
            self._move(await self._engine.save(self._ref, update, key=["state", self._ref.version or ""]))
            self._saved = now
        return bool(update)

    async def _end(self, reason: Reason, error: BaseException | None = None) -> None:
        """What is to be done on every path, in this order."""
        self._set_status(_STATUS_AT_END[reason])
        if self.state.ref is not None:
            await self._attempt("messages that were told weren't kept", self._close_inbox)
            # Also the first thing that an engine refuses which only takes the workflow out of memory.
            await self._attempt("the state wasn't saved", self._save)
            await self._attempt("the end wasn't recorded", self._record_end, reason, error)
        turns, usage = self.state.turns, self.state.usage
        own_usage = {name: usage[name] - self._before_usage[name] for name in usage}
        figures = (reason, turns, usage, turns - self._before_turns, Usage(own_usage))
        await self._fire("on_session_end", *figures)
        if self._owns_sandbox and self.state.sandbox_id is not None:
            await self._attempt("the sandbox wasn't shut down", self._leave_sandbox, self.state.sandbox_id)
        for name, left in self._left:
            await self._attempt("a subagent's sandbox wasn't shut down", self._destroy_left, name, left)
        await self._fire("on_session_exit", self.state.sandbox_id, self._snapshot, self.state.ref)

    async def _close_inbox(self) -> None:
        """From here on whoever tells something is refused; what was told already stands in the thread."""
        if isinstance(self._inbox, Inbox):
            self._inbox.close()
            self._unread.extend(await self._inbox(0) or [])
        for message in self._unread:
            if message is not None:
                await self._take(message)

    async def _record_end(self, reason: Reason, error: BaseException | None) -> None:
        told = () if error is None else (error,)
        state = self.state
        about: dict[str, Any] = {"turns": state.turns, "usage": dict(state.usage)}
        if state.agent:
            about["agent"] = state.agent
        self._move(await self._engine.end(self._ref, reason, *told, **about))

    async def _leave_sandbox(self, name: str) -> None:
        assert self._sandbox is not None
        if self._sandbox.at_end == "pause" and self._sandbox.pause is not None:
            await self._sandbox.pause(name)
        if self._sandbox.at_end == "parent":
            self._left_sandbox = name
        if self._sandbox.at_end in ("pause", "keep", "parent"):
            return
        if self._sandbox.at_end == "snapshot" and self._sandbox.snapshot is not None:
            self._snapshot = await self._sandbox.snapshot(name)
        assert self._sandbox.destroy is not None
        await self._sandbox.destroy(name)

    async def _destroy_left(self, tool_name: str, sandbox_id: str) -> None:
        tool = self._tools_now().get(tool_name)
        if not isinstance(tool, SubagentTool) or tool.destroy is None:
            raise UsageError(
                f"the subagent {tool_name!r} left the sandbox {sandbox_id!r}: pass SubagentTool(destroy=…)"
            )
        await tool.destroy(sandbox_id)

    async def _attempt(self, failure: str, step: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Do a part of the end; a failure is a warning, and masks nothing."""
        try:
            await step(*args)
        except Exception as error:
            self._warnings.append(f"{failure}: {type(error).__name__}: {error}")
            _log.warning("at the end of a run %s: %s", failure, error)

    async def _fire(self, event: str, *args: Any) -> None:
        await self._hooks.fire_async(event, *args)


_STATUS_AT_END: Final[dict[str, str]] = {
    "completed": "completed",
    "max_turns": "failed",
    "waiting_for_input": WAITING,
    "failed": "failed",
    "cancelled": "cancelled",
}


def _messages(given: Any) -> list[Mapping[str, Any]]:
    if given is None:
        return []
    found = [given] if isinstance(given, Mapping) else list(given)
    for message in found:
        check_mapping(message, "message")
    return found


def _id_of(ref: ThreadRef, *parts: Any) -> str:
    """An id that depends on nothing but where the workflow stands."""
    return sha256(json.dumps([ref.thread, ref.version, *parts]).encode()).hexdigest()[:32]


def _text_of(call: ToolCall, content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    try:
        return json.dumps(content, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"the tool {call.name!r} returned {type(content).__name__}; it can return text, JSON-like data, "
            "a message, or the ThreadRef of its step",
            path="tools",
        ) from error


async def _awaited(value: Any) -> Any:
    return await value if isawaitable(value) else value


def _is_cancellation(error: BaseException) -> bool:
    """Whether somebody stopped the run: engines wrap that into errors of their own, which have a cause."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, asyncio.CancelledError) or type(found).__name__ == "CancelledError":
            return True
        # Not what Python notes as a cause: a tool's time-out has a cancellation for one as well.
        found = getattr(found, "cause", None)
    return False


async def _to_the_end(work: Awaitable[T]) -> tuple[T, asyncio.CancelledError | None]:
    """Do the work to its end; what it gives, and the cancellation that came meanwhile, if one did."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    # It is cancelled itself where an engine takes the workflow out of memory: that cancels all there is.
    return task.result(), cancelled


class _VerbsWithOptions:
    """The verbs of an engine, each called with the same options."""

    def __init__(self, engine: Any, options: Mapping[str, Any]) -> None:
        for verb in ("append", "rewind", "end", "load", "save"):
            setattr(self, verb, partial(getattr(engine, verb), **options))
        self.BEGINS_IN_ORDER = getattr(engine, "BEGINS_IN_ORDER", False)


def _with_options(engine: Any, options: Mapping[str, Any] | None) -> Any:
    if not options:
        return engine
    check_mapping(options, "options")
    if not getattr(engine, "TAKES_OPTIONS", False):
        raise InvalidValueError(
            "options= are not allowed: they are those of workflow.execute_activity(), and this engine has no "
            "activities; leave them out",
            path="options",
        )
    return _VerbsWithOptions(engine, options)


def _engine_here() -> Any:
    """The engine whose workflow this code runs in."""
    temporal = sys.modules.get("temporalio.workflow")
    if temporal is not None and temporal.in_workflow():
        return importlib.import_module("everthread.engines.temporal")
    dbos = sys.modules.get("dbos")
    if dbos is not None and dbos.DBOS.workflow_id is not None:
        return importlib.import_module("everthread.engines.dbos")
    raise UsageError("run_agent() isn't called in a workflow: say which verbs it shall use, engine=…")
