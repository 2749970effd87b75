"""``EverthreadPlugin``: a store for the workers of Temporal, and payloads of its clients in that store."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, NoReturn

from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, ExternalStorage
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    ActivityInboundInterceptor,
    ContinueAsNewInput,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    HandleSignalInput,
    HandleUpdateInput,
    Interceptor,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    Worker,
    WorkerConfig,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from everthread.arguments import check_count
from everthread.engines.failures import MessageRefusedError
from everthread.engines.pointers import ThreadRef
from everthread.engines.temporal.activities import (
    ACTIVITIES,
    PREFIX,
    AnyStore,
    Scheduled,
    StoreSource,
    has_plugin,
    heartbeats,
    scheduled,
)
from everthread.engines.temporal.log_activities import LOG_ACTIVITIES
from everthread.engines.temporal.payloads import PayloadDriver
from everthread.errors import UnavailableError, UsageError

_log = logging.getLogger("everthread")

#: The header of an activity that says which run has scheduled it.
_HEADER = "everthread"
#: The activities behind ``end()``.
_ENDS = ("everthread.end", "everthread.end_with_error")
#: What Temporal's server takes, unless it was configured otherwise. Beyond it a workflow task fails, and is
#: tried for ever.
_ARGUMENTS_BYTES_MAX = 2 * 1024 * 1024
#: A worker whose store can't be reached tries again after this time, then after twice as long, up to a limit.
_RETRY_S, _RETRY_S_MAX = 0.5, 10.0
#: Arguments of these types, or texts up to this length, needn't be measured.
_SMALL = (bool, int, float, ThreadRef, type(None))
_SMALL_CHARACTERS = 16 * 1024


class EverthreadPlugin(SimplePlugin):
    """Give it to ``Client.connect(plugins=[…])``; workers of that client have it too.

    ``store`` is a URL, a dictionary with the options of ``open_async()``, or an open async store. Workers
    open it while they run; a client opens nothing. A worker that has activities gets those behind the verbs
    too. Everthread is passed through the sandbox of workflows. A workflow whose worker is gone goes to
    another one after ``sticky`` (Temporal's own default is 10 seconds; ``None`` leaves that).

    With ``payloads_over`` payloads of more bytes than these are kept in the store instead of in histories, 0
    for all of them; ``subject`` and the rest of ``payload_options`` are those of ``PayloadDriver``.
    ``fork_hooks`` are the functions that workflows may name in ``open_thread(prepare=…, transform=…)``."""

    def __init__(
        self,
        store: AnyStore = None,
        *,
        payloads_over: int | None = None,
        subject: Any = None,
        payload_options: Mapping[str, Any] | None = None,
        sticky: timedelta | None = timedelta(seconds=1),
        fork_hooks: Sequence[Callable[..., Any]] = (),
    ) -> None:
        self._source = StoreSource(store, fork_hooks)
        self._sticky = sticky
        self._driver: PayloadDriver | None = None
        if payloads_over is not None:
            self._threshold = check_count(payloads_over, "payloads_over")
            self._driver = PayloadDriver(
                self._source.given, **{**(payload_options or {}), "subject": subject}
            )
        elif subject is not None or payload_options is not None:
            raise UsageError("subject= and payload_options= are about payloads: give payloads_over= as well")
        super().__init__(
            "everthread",
            data_converter=self._converter if self._driver is not None else None,
            workflow_runner=_passed_through,  # type: ignore[arg-type]
            interceptors=[_Interceptor(self._source, self._driver is None)],
        )

    def _converter(self, found: DataConverter | None) -> DataConverter:
        assert self._driver is not None
        found = found or DataConverter.default
        known = found.external_storage
        if known is not None and self._driver not in known.drivers:
            raise UsageError("this client has an external storage already: leave out payloads_over=")
        storage = ExternalStorage(drivers=[self._driver], payload_size_threshold=self._threshold)
        return dataclasses.replace(found, external_storage=storage)

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        config = super().configure_worker(config)
        config["activities"] = _with_ours(config.get("activities"), are_brought=self._are_brought(config))
        if self._sticky is not None:
            # A default is there already, whoever has chosen it.
            config["sticky_queue_schedule_to_start_timeout"] = self._sticky
        if self._driver is not None:
            converter = config["client"].data_converter
            if converter.external_storage is None or self._driver not in converter.external_storage.drivers:
                raise UsageError(
                    "payloads are the client's: with payloads_over= give the plugin to "
                    "Client.connect(plugins=[…])"
                )
        return config

    @property
    def payloads(self) -> PayloadDriver | None:
        """The driver behind ``payloads_over``. A client without a worker attaches it by itself if it has a
        ``ttl``: ``await plugin.payloads.attach(client)``."""
        return self._driver

    def _are_brought(self, config: WorkerConfig) -> bool:
        """Whether a plugin that comes after this one has activities for the worker."""
        others = [*config["client"].config()["plugins"], *config.get("plugins", [])]
        return any(getattr(other, "activities", None) for other in others if other is not self)

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        async with AsyncExitStack() as stack:
            wait_s = _RETRY_S
            is_stopped = False
            # One that is shut down meanwhile runs to its end: its caller waits for that.
            while not is_stopped:
                try:
                    if self._driver is not None:
                        await self._driver.attach(worker.client)
                    await stack.enter_async_context(self._source.opened())
                    break
                except UnavailableError as error:
                    _log.warning("worker can't open its store, and tries again in %g s: %s", wait_s, error)
                    is_stopped = await _is_stopped_within(wait_s, worker)
                    wait_s = min(2 * wait_s, _RETRY_S_MAX)
                except Exception as error:
                    # Whoever enters a worker by ``async with`` isn't told, and waits for ever.
                    _log.error("worker can't open its store, and ends: %s", error)
                    raise
            await next(worker)


async def _is_stopped_within(wait_s: float, worker: Worker) -> bool:
    """Wait so long; return True, at once, if somebody asks the worker to shut down."""
    # Nothing public says so before the worker runs. Without this attribute only a cancellation ends the wait.
    asked = getattr(worker, "_shutdown_event", None)
    waiting = asked.wait() if isinstance(asked, asyncio.Event) else asyncio.Event().wait()
    try:
        return await asyncio.wait_for(waiting, wait_s)
    except TimeoutError:
        return False


def _with_ours(
    found: Sequence[Callable[..., Any]] | None, *, are_brought: bool = False
) -> Sequence[Callable[..., Any]]:
    """A worker without activities stays without, unless another plugin brings some: it would be handed those
    of others too."""
    if not found and not are_brought:
        return []
    known = found or []
    return [*known, *(each for each in (*ACTIVITIES, *LOG_ACTIVITIES) if each not in known)]


def _passed_through(found: WorkflowRunner | None) -> WorkflowRunner | None:
    if not isinstance(found, SandboxedWorkflowRunner):
        return found
    restrictions = found.restrictions.with_passthrough_modules("everthread")
    return dataclasses.replace(found, restrictions=restrictions)


# ── what goes along with an activity ─────────────────────────────────────────────────────────


class _Interceptor(Interceptor):
    """Notes in the history which run schedules an activity, and hands that to the activity with the store."""

    def __init__(self, source: StoreSource, measures: bool) -> None:
        self._source = source
        self._measures = measures

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Activities(next, self._source)

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor] | None:
        return _MeasuredWorkflows if self._measures else _Workflows


class _Activities(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, source: StoreSource) -> None:
        super().__init__(next)
        self._source = source

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        header = input.headers.get(_HEADER)
        # Activities that an older release scheduled name no execution.
        parts = [] if header is None else header.data.decode().split(" ")
        token = scheduled.set(Scheduled(self._source, *parts[:3]))
        try:
            if not activity.info().activity_type.startswith(PREFIX):
                return await super().execute_activity(input)
            async with heartbeats():
                return await super().execute_activity(input)
        finally:
            scheduled.reset(token)


class _Workflows(WorkflowInboundInterceptor):
    measures = False

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        self._outbound = _Outbound(outbound, self.measures)
        super().init(self._outbound)

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        has_plugin.set(True)
        try:
            return await super().execute_workflow(input)
        finally:
            error = sys.exception()
            if error is None or (
                isinstance(error, Exception | asyncio.CancelledError)
                and not isinstance(error, workflow.ContinueAsNewError)
            ):
                await self._outbound.end_again()

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        has_plugin.set(True)
        return await super().handle_update_handler(input)

    async def handle_signal(self, input: HandleSignalInput) -> None:
        has_plugin.set(True)
        try:
            await super().handle_signal(input)
        except ApplicationError as error:
            if not isinstance(error.cause, MessageRefusedError):
                raise
            # Nobody waits for a signal's answer, and its failure would end the workflow.
            workflow.logger.warning("signal %r was dropped: %s", input.signal, error)


class _MeasuredWorkflows(_Workflows):
    measures = True


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, next: WorkflowOutboundInterceptor, measures: bool) -> None:
        super().__init__(next)
        self._measures = measures
        #: By thread: the activity that recorded the end of this run there, and the seed at that time.
        self._ends: dict[str, tuple[int, StartActivityInput, workflow.ActivityHandle[Any]]] = {}

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        self._require_small(f"the activity {input.activity!r}", input.args)
        input.headers = {**input.headers, _HEADER: _scheduler()}
        handle = super().start_activity(input)
        if input.activity in _ENDS:
            self._ends[input.args[0].thread] = (workflow.random_seed(), input, handle)
        return handle

    async def end_again(self) -> None:
        """Bring threads back to where this run ended them, if it was reset since: activities without a step
        may have followed, and other runs may have moved the threads meanwhile. A reset draws a new seed."""
        for thread in list(self._ends):
            seed, input, handle = self._ends[thread]
            while seed != workflow.random_seed():
                done = handle.done() and not handle.cancelled() and handle.exception() is None
                ref = handle.result() if done else input.args[0]
                handle = self.start_activity(dataclasses.replace(input, args=[ref, *input.args[1:]]))
                try:
                    await handle
                except ActivityError as error:
                    # A newer run counts, or the thread was deleted: the result of this run is right.
                    workflow.logger.warning("the thread %r wasn't brought back to its end: %s", thread, error)
                    return
                seed, input, handle = self._ends[thread]

    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        self._require_small(f"the activity {input.activity!r}", input.args)
        input.headers = {**input.headers, _HEADER: _scheduler()}
        return super().start_local_activity(input)

    async def start_child_workflow(
        self, input: StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        self._require_small(f"the workflow {input.workflow!r}", input.args)
        return await super().start_child_workflow(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:
        self._require_small("continue_as_new()", input.args)
        super().continue_as_new(input)

    def _require_small(self, what: str, arguments: Sequence[Any]) -> None:
        """Raise, once and for good, instead of letting the workflow task fail for ever."""
        if not self._measures or all(_is_small(each) for each in arguments):
            return
        size = sum(payload.ByteSize() for payload in workflow.payload_converter().to_payloads(arguments))
        if size > _ARGUMENTS_BYTES_MAX:
            raise ApplicationError(
                f"the arguments of {what} have {size:,} bytes, and Temporal takes {_ARGUMENTS_BYTES_MAX:,}: "
                "keep them in the thread, in a step of an activity, and pass a ThreadRef; or let "
                "EverthreadPlugin(store, payloads_over=…) keep large payloads in the store",
                type="PayloadTooLarge",
                non_retryable=True,
            )


def _is_small(argument: Any) -> bool:
    if isinstance(argument, str | bytes):
        return len(argument) <= _SMALL_CHARACTERS
    return isinstance(argument, _SMALL)


def _scheduler() -> Payload:
    info = workflow.info()
    # Each run of a cron schedule is an execution, though Temporal continues it from the one before.
    execution = info.original_execution_run_id if info.cron_schedule else info.first_execution_run_id
    return Payload(
        metadata={"encoding": b"binary/plain"},
        data=f"{info.run_id} {info.original_execution_run_id} {execution}".encode(),
    )
