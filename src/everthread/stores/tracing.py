"""What a store does, told to OpenTelemetry: a span and a measurement for each verb of the contract.

Only the API is used: without an SDK in the process nothing is recorded. A span says which verb it was, on
which kind of store, and how it ended. It never says a name, a key or anything that is stored.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, cast

from everthread.arguments import with_extra
from everthread.errors import MissingDependencyError
from everthread.stores.contract import Backend

#: Verbs of which nobody wants a span: they wait for others, or hand out one piece after the other.
_UNTOLD = frozenset({"wait", "every_line", "close"})
VERBS: frozenset[str] = frozenset(
    name for name, member in vars(Backend).items() if inspect.isfunction(member) and not name.startswith("_")
)
_SYSTEMS = {"valkeys": "valkey", "redis": "valkey", "rediss": "valkey", "postgres": "postgresql"}


def traced(backend: Any) -> Any:
    """``backend``, of either colour, with a span around each of its verbs.

    Raises :class:`MissingDependencyError` without the package ``opentelemetry-api``.
    """
    try:
        from opentelemetry import metrics, trace
    except ImportError as error:
        raise MissingDependencyError(
            f"telemetry=True needs the package opentelemetry-api: {with_extra('otel')}",
            name="opentelemetry",
        ) from error
    scheme = backend.url.partition(":")[0]
    duration = metrics.get_meter("everthread").create_histogram(
        "everthread.store.duration", unit="s", description="How long a verb of a store took."
    )
    system = _SYSTEMS.get(scheme, scheme)
    return cast("Backend", _Traced(backend, system, trace.get_tracer("everthread"), duration))


class _Traced:
    """Hands every call on. What isn't a verb is that of the backend beneath."""

    def __init__(self, backend: Any, system: str, tracer: Any, duration: Any) -> None:
        self._backend = backend
        self._system = system
        self._tracer = tracer
        self._duration = duration

    @property
    def blocking(self) -> Any:
        """The blocking driver of an async one, told of as well."""
        return _Traced(self._backend.blocking, self._system, self._tracer, self._duration)

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._backend, name)
        if name not in VERBS or name in _UNTOLD:
            return member
        told = (
            self._awaited(name, member) if inspect.iscoroutinefunction(member) else self._told(name, member)
        )
        # Found without this detour from now on.
        self.__dict__[name] = told
        return told

    def _told(self, verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            with _Telling(self, verb):
                return method(*args, **options)

        return call

    def _awaited(self, verb: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(method)
        async def call(*args: Any, **options: Any) -> Any:
            with _Telling(self, verb):
                return await method(*args, **options)

        return call


class _Telling:
    """A span that is current within the block, and a measurement of how long it took."""

    def __init__(self, traced: _Traced, verb: str) -> None:
        self._traced = traced
        self._attributes = {"db.system.name": traced._system, "db.operation.name": verb}
        # A verb signals what it found by raising (a stale writer, say), which is no failure; and the text of
        # an error may hold names: neither is recorded.
        self._span = traced._tracer.start_as_current_span(
            f"everthread.{verb}",
            attributes=self._attributes,
            record_exception=False,
            set_status_on_exception=False,
        )

    def __enter__(self) -> None:
        self._begun = time.perf_counter()
        self._current = self._span.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        attributes = dict(self._attributes)
        if kind is not None:
            attributes["error.type"] = kind.__name__
            self._current.set_attribute("error.type", kind.__name__)
        self._traced._duration.record(time.perf_counter() - self._begun, attributes)
        self._span.__exit__(kind, error, trace)
