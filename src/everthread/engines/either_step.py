"""A step that is entered with ``async with`` or, in blocking code, with ``with``."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any

from everthread.engines.aio.steps import AsyncEngineStep
from everthread.engines.pointers import ThreadRef
from everthread.engines.sync.steps import EngineStep


class EitherStep:
    """What an engine's ``step()`` gives; a subclass says how a step is entered there."""

    def __init__(self, ref: ThreadRef, key: tuple[str | int, ...], options: dict[str, Any]) -> None:
        self._arguments = (ref, key)
        self._options = options
        self._awaited: AbstractAsyncContextManager[AsyncEngineStep] | None = None
        self._blocking: AbstractContextManager[EngineStep] | None = None

    def _enter_async(self) -> AbstractAsyncContextManager[AsyncEngineStep]:
        raise NotImplementedError

    def _enter_blocking(self) -> AbstractContextManager[EngineStep]:
        raise NotImplementedError

    async def __aenter__(self) -> AsyncEngineStep:
        self._awaited = self._enter_async()
        return await self._awaited.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._awaited is not None
        return await self._awaited.__aexit__(kind, error, trace)

    def __enter__(self) -> EngineStep:
        self._blocking = self._enter_blocking()
        return self._blocking.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._blocking is not None
        return self._blocking.__exit__(kind, error, trace)
