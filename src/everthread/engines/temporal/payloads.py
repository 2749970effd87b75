"""``PayloadDriver``: Temporal's External Storage on an Everthread store.

Payloads leave the history of a workflow and become items of a log; a claim of two names stays in the history.
What a workflow hands to a model grows by a little each time, so an item is the difference to an earlier one
of the same thread. A thread lives and ends as a whole: whatever a difference is based on lives as long as the
difference.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from hashlib import blake2b, sha256
from reprlib import repr as shortened
from typing import Any, NamedTuple, TypeVar

import zstandard
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.converter import (
    StorageDriver,
    StorageDriverActivityInfo,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from everthread.arguments import check_count, check_function, check_name
from everthread.errors import (
    ConflictError,
    ErasedError,
    InvalidNameError,
    StateCorruptedError,
    StoreBusyError,
    StoreUnavailableError,
    ThreadDeletedError,
    UsageError,
)
from everthread.store_async import AsyncStore, open_async
from everthread.threads.aio.thread import AsyncThread
from everthread.threads.lifetimes import Lifetime, ttl_us
from everthread.values import Erased, Personal

_STARTED = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
_log = logging.getLogger("everthread")

T = TypeVar("T")
Target = StorageDriverWorkflowInfo | StorageDriverActivityInfo | None

#: The log of a thread that holds its payloads, and the place in its document of the keys for their names.
LOG, SECRETS = "payloads", "secrets"

ERASED, EXPIRED, UNKNOWN, TOO_LARGE = "PayloadErased", "PayloadExpired", "PayloadUnknown", "PayloadTooLarge"

#: Differences in a row, then a whole payload.
CHAIN_MAX = 32
#: Shorter payloads are kept whole: there is nothing to gain.
_DIFFERENCE_BYTES_MIN = 1024
#: How many earlier payloads of a thread are looked at, and in how many places of so many bytes.
_CANDIDATES_MAX, _SAMPLES, _SAMPLE_BYTES, _NEAR_BYTES = 8, 8, 48, 1024
#: A base saves this part of a payload at least, or isn't used.
_COMMON_PART_MIN = 0.25
#: Work on more bytes than these is done on another thread.
_ASIDE_BYTES_MIN = 32 * 1024
#: What is committed at once, at most, beyond the first payload.
_BATCH_BYTES_MAX = 8 * 1024 * 1024
#: How often a commit is tried anew when others were first.
_TRIES_MAX = 64
#: Threads whose payloads are remembered.
_SHELVES_MAX = 1024
#: Links from a payload to a whole one: more than are ever made.
_LINKS_MAX = 8 * CHAIN_MAX
_ID_BYTES, _SECRET_BYTES, _UNTIL_DIGITS_MAX = 20, 32, 15
#: What an item needs beside its payload.
_ITEM_BYTES = 64 * 1024
#: Sizes of zstd's tables and window, as powers of two.
_TABLE_BITS_MIN, _TABLE_BITS_MAX, _WINDOW_BITS_MAX = 17, 24, 27
_MICROSECOND = timedelta(microseconds=1)
#: Storing what is there already renews its lifetime if this part of it is over, or this time.
_RENEWED_PART, _RENEWED_US = 100, 60_000_000


class PayloadDriver(StorageDriver):
    """Keeps payloads of Temporal in a store: ``ExternalStorage(drivers=[PayloadDriver(store)])``.

    ``store`` is an open async store; or a URL, a path or a dictionary with the options of ``open_async()``:
    then it is opened at first use, and :meth:`close` closes it. Each workflow id has one thread, below
    ``prefix``. What is stored is durable when :meth:`store` returns; storing the same payload again stores
    nothing. Several workers may share a store.

    With a ``ttl`` the payloads of a workflow are gone when nothing was stored for it for so long. It must
    not be shorter than the time for which the namespace keeps histories: :meth:`attach` asks for that, and
    before it nothing is stored.

    With a ``subject``, a name or a function from the workflow (or activity, or ``None``) to one, payloads are
    sealed under that person's key, until ``store.erase(subject)``.

    ``memory_bytes`` bounds what is remembered of payloads to make differences. Payloads larger than the
    ``payload_bytes_max`` of the store are refused.
    """

    def __init__(
        self,
        store: AsyncStore | str | os.PathLike[str] | Mapping[str, Any] | None = None,
        *,
        prefix: str = "temporal/payloads/",
        ttl: Lifetime = None,
        subject: str | Callable[[Target], str | None] | None = None,
        driver_name: str = "everthread",
        memory_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        if not isinstance(store, AsyncStore | str | os.PathLike | Mapping | None):
            raise UsageError(
                "a payload driver takes what everthread.open_async() gives, awaited, or a URL, or a "
                f"dictionary with the options of open_async(), not {type(store).__name__}"
            )
        self._given = store
        self._store = store if isinstance(store, AsyncStore) else None
        self._opening = asyncio.Lock()
        self._prefix = check_name(prefix, "prefix")
        self._ttl = None if ttl is None else timedelta(microseconds=ttl_us(ttl))
        if isinstance(subject, str):
            check_name(subject, "subject")
        elif subject is not None:
            check_function(subject, "subject")
        self._subject = subject
        self._name = check_name(driver_name, "driver_name")
        self._shelves = _Shelves(check_count(memory_bytes, "memory_bytes"))
        #: By namespace; their retention is known to be no longer than the lifetime.
        self._clients: dict[str, Client] = {}

    def name(self) -> str:
        """The name that histories know this driver by."""
        return self._name

    def type(self) -> str:
        """The same for all drivers of this class."""
        return "everthread"

    def thread_name(self, workflow_id: str, namespace: str = "default") -> str:
        """The thread that holds the payloads of a workflow, for everything else that a thread can do."""
        return self._named(namespace, workflow_id)

    async def attach(self, client: Client) -> None:
        """Tell the driver which client it serves, once after connecting.

        With a ``ttl`` the server is asked how long it keeps the histories of closed workflows. Raises
        :class:`UsageError` if payloads would expire before the histories that need them.

        From then on what needs a payload that is gone is ended, and the reason names the payload: Temporal's
        SDK would try an activity, and a workflow that it replays, for ever.
        """
        if self._ttl is not None:
            request = DescribeNamespaceRequest(namespace=client.namespace)
            found = await client.workflow_service.describe_namespace(request)
            retention = found.config.workflow_execution_retention_ttl.ToTimedelta()
            if self._ttl < retention:
                raise UsageError(
                    f"ttl={self._ttl} is shorter than the {retention} for which the namespace "
                    f"{client.namespace!r} keeps the histories of closed workflows, which need their "
                    "payloads: let ttl be that and the longest time for which a workflow stores nothing, or "
                    "shorten the retention (temporal operator namespace update "
                    f"-n {client.namespace} --retention …)"
                )
        self._clients[client.namespace] = client

    async def close(self) -> None:
        """Wait for what is being stored, and close the store if it was opened here."""
        await self._shelves.settle()
        if self._store is not None and self._store is not self._given:
            store, self._store = self._store, None
            await store.close()

    # ── storing ──────────────────────────────────────────────────────────────────────────────

    async def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload]
    ) -> list[StorageDriverClaim]:
        """Keep payloads, durably, and return a claim for each. What is stored for one workflow at the same
        time is committed together.

        A cancelled call may have stored its payloads, or not. Raises ``ApplicationError`` of the type
        ``PayloadTooLarge``, which isn't retried.
        """
        store = await self._opened()
        target = context.target
        self._require_attached(target)
        subject = self._subject(target) if callable(self._subject) else self._subject
        raws = [payload.SerializeToString(deterministic=True) for payload in payloads]
        for raw in raws:
            _check_size(raw, store.core.limits.payload_bytes_max)
        loop = asyncio.get_running_loop()
        job = _Job(subject, raws, loop.create_future())
        shelf = self._shelves.get(self._thread_of(target))
        shelf.waiting.append(job)
        if shelf.writer is None or shelf.writer.done():
            # A task of its own: a caller who is cancelled takes nobody along.
            shelf.writer = loop.create_task(self._write(store, shelf))
        return await job.claims

    async def _write(self, store: AsyncStore, shelf: _Shelf) -> None:
        while batch := shelf.take():
            try:
                ids, until = await self._commit(store, shelf, batch)
            except Exception as error:
                for job in batch:
                    job.fail(error)
            except BaseException:
                for job in [*batch, *shelf.waiting]:
                    job.claims.cancel()
                shelf.waiting.clear()
                raise
            else:
                for job, row in zip(batch, ids, strict=True):
                    job.succeed(
                        [StorageDriverClaim({"thread": shelf.name, "id": each, **until}) for each in row]
                    )

    async def _commit(
        self, store: AsyncStore, shelf: _Shelf, batch: Sequence[_Job]
    ) -> tuple[list[list[str]], dict[str, str]]:
        """Make one version of what isn't there yet; the names of all, and when their time is over.

        If somebody else was first, it is read what they wrote, and decided anew.
        """
        for _ in range(_TRIES_MAX):
            thread = await store.thread(shelf.name, ttl=self._ttl)
            with suppress(ConflictError, ThreadDeletedError, ErasedError):
                fresh: dict[str, _Kept] = {}
                items: list[dict[str, Any]] = []
                ids = [await self._prepare(thread, shelf, job, fresh, items) for job in batch]
                if items:
                    # Aside: sealing reads the keyring.
                    await store.core.backend.aside(thread.log(LOG).extend, items)
                    await thread.commit()
                elif self._ttl is not None:
                    await _renew(thread, self._ttl)
                for payload_id, kept in fresh.items():
                    self._shelves.keep(shelf.name, payload_id, kept)
                return ids, {} if self._ttl is None else {"until": _end(thread, self._ttl)}
        raise StoreBusyError(
            f"others were first {_TRIES_MAX} times to store payloads in the thread {shelf.name!r}: try again"
        )

    async def _prepare(
        self,
        thread: AsyncThread,
        shelf: _Shelf,
        job: _Job,
        fresh: dict[str, _Kept],
        items: list[dict[str, Any]],
    ) -> list[str]:
        """The names of a job's payloads; those that the thread doesn't hold are added to ``items``."""
        aside, log, ids = thread.core.backend.aside, thread.log(LOG), []
        secret = b""
        if job.subject is not None:
            secret = await aside(_secret, thread, job.subject)
        for raw in job.raws:
            payload_id = await _run(aside, len(raw), _mark, raw, secret)
            ids.append(payload_id)
            if payload_id in fresh or await log.find(payload_id) is not None:
                continue
            known = {**shelf.newest(), **fresh}
            base_id, data = await _run(aside, len(raw), _difference, raw, secret, known)
            if base_id is not None and base_id not in fresh and await log.find(base_id) is None:
                # Of a thread that had this name before.
                base_id, data = None, await _run(aside, len(raw), _pack, raw, b"")
            fresh[payload_id] = kept = _Kept(raw, 0 if base_id is None else known[base_id].depth + 1)
            items.append(
                {
                    "id": payload_id,
                    "base": base_id,
                    "depth": kept.depth,
                    "data": data if job.subject is None else Personal(job.subject, data),
                }
            )
        return ids

    def _require_attached(self, target: Target) -> None:
        if self._ttl is None or (target.namespace in self._clients if target is not None else self._clients):
            return
        raise UsageError(
            f"a payload driver with a ttl stores nothing before it knows how long the namespace "
            f"{'' if target is None else repr(target.namespace) + ' '}keeps histories: "
            "await driver.attach(client), once after connecting"
        )

    def _thread_of(self, target: Target) -> str:
        match target:
            case StorageDriverWorkflowInfo():
                return self._named(target.namespace, target.id or "")
            case StorageDriverActivityInfo():
                return self._named(target.namespace, "activities", target.id or "", target.run_id or "")
            case _:
                return self._named("")

    def _named(self, *parts: str) -> str:
        """A name below the prefix, readable, and no two targets share one."""
        name = self._prefix + "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)
        try:
            return check_name(name, "name of a thread")
        except InvalidNameError:
            # Temporal allows longer ones. No part of a name has a slash of its own.
            digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
            return f"{self._prefix}/sha256/{digest}"

    async def _opened(self) -> AsyncStore:
        if self._store is None:
            async with self._opening:
                if self._store is None:
                    given: Any = self._given
                    options = given if isinstance(given, Mapping) else {"url": given}
                    self._store = await open_async(**options)
        return self._store

    # ── retrieving ───────────────────────────────────────────────────────────────────────────

    async def retrieve(
        self,
        context: StorageDriverRetrieveContext,
        claims: Sequence[StorageDriverClaim],
    ) -> list[Payload]:
        """The payloads that claims stand for.

        Raises ``ApplicationError``, which isn't retried, of the type ``PayloadErased`` if the person was
        erased, ``PayloadExpired`` if the time to live is over, ``PayloadUnknown`` if there is no such payload
        or the claim is none of this driver's.
        """
        store = await self._opened()
        threads: dict[str, AsyncThread] = {}
        found = []
        for claim in claims:
            wanted = self._read_claim(claim)
            if wanted.thread not in threads:
                threads[wanted.thread] = await store.thread(wanted.thread)
            try:
                found.append(Payload.FromString(await self._restore(threads[wanted.thread], wanted)))
            except ApplicationError as gone:
                await self._end_what_needs(wanted, gone)
                raise
        return found

    def _read_claim(self, claim: StorageDriverClaim) -> _Wanted:
        data = claim.claim_data
        name, payload_id, until = data.get("thread"), data.get("id"), data.get("until", "0")
        with suppress(InvalidNameError, ValueError):
            if (
                check_name(name, "thread").startswith(self._prefix)
                and isinstance(payload_id, str)
                and len(bytes.fromhex(payload_id)) == _ID_BYTES
                and isinstance(until, str)
                and len(until) <= _UNTIL_DIGITS_MAX
            ):
                return _Wanted(str(name), payload_id, int(until))
        raise _failure(
            UNKNOWN,
            f"{shortened(dict(data))} is no claim of a payload below {self._prefix!r}: another driver made "
            "it, or one with another prefix",
        )

    async def _restore(self, thread: AsyncThread, wanted: _Wanted) -> bytes:
        """The bytes of a payload. The store is asked in any case, so that an erasure shows; what it is based
        on may be remembered."""
        aside, links, base = thread.core.backend.aside, list[_Link](), _NOTHING
        next_id: str | None = wanted.payload_id
        while next_id is not None:
            link = await self._read_link(thread, next_id)
            if link is None and not links:
                raise await self._missing(thread, wanted)
            if link is None or len(links) > _LINKS_MAX:
                raise StateCorruptedError(
                    f"a payload in {thread.name!r} is based on {next_id}, which isn't there: verify the store"
                )
            links.append(link)
            next_id = link.base
            known = None if next_id is None else self._shelves.find(thread.name, next_id)
            if known is not None:
                base, next_id = known, None
        raw, limit = base.raw, thread.core.limits.payload_bytes_max
        for link in reversed(links):
            raw = await _run(aside, len(raw) + len(link.data), _unpack, link.data, raw, limit)
        self._shelves.keep(thread.name, wanted.payload_id, _Kept(raw, links[0].depth))
        return raw

    async def _read_link(self, thread: AsyncThread, payload_id: str) -> _Link | None:
        log = thread.log(LOG)
        at = await log.find(payload_id)
        if at is None:
            return None
        (item,) = await log.read(at, at + 1)
        data = item.get("data")
        if isinstance(data, Personal):
            try:
                # Aside: the sealed bytes are read, and the keyring.
                data = await thread.core.backend.aside(_value, data)
            except ErasedError:
                data = Erased()
        if isinstance(data, Erased):
            raise _failure(
                ERASED,
                f"the payload {payload_id} of {thread.name!r} was erased, as was the person whose it was; "
                "nobody can read it any more",
            )
        if not isinstance(data, bytes):
            raise StateCorruptedError(f"{payload_id} of {thread.name!r} isn't a payload")
        return _Link(item.get("base"), item.get("depth", 0), data)

    async def _missing(self, thread: AsyncThread, wanted: _Wanted) -> Exception:
        """Why there is no such payload. Only what is certain fails a workflow for good."""
        if thread.recovered is not None:
            return StateCorruptedError(
                f"the newest versions of {thread.name!r} are damaged, and may hold the payload "
                f"{wanted.payload_id}: heal the thread"
            )
        core = thread.core
        if wanted.until_s and core.runtime.now_us() >= wanted.until_s * 1_000_000:
            return _failure(
                EXPIRED,
                f"the payload {wanted.payload_id} of {thread.name!r} has expired: nothing was stored there "
                "within the ttl of the driver that stored it",
            )
        if not await core.backend.lines(core.space, self._prefix, None, 1):
            return StoreUnavailableError(
                f"this store holds no payload at all below {self._prefix!r}: is it the one that the claim "
                "was made for?"
            )
        return _failure(
            UNKNOWN,
            f"there is no payload {wanted.payload_id} in {thread.name!r}: the thread was deleted, or the "
            "claim is of another store",
        )

    # ── who needs a payload that is gone ─────────────────────────────────────────────────────

    async def _end_what_needs(self, wanted: _Wanted, gone: ApplicationError) -> None:
        """End, at the server, what can't go on and would be tried for ever.

        The SDK can't fail a workflow while it replays it, and takes any error over the arguments of an
        activity for one that may pass. Both are ended only if the history of the run holds the claim.
        """
        namespace, _, name = wanted.thread.removeprefix(self._prefix).partition("/")
        client = self._clients.get(_unescaped(namespace))
        if client is None or "/" in name:
            return
        try:
            described = await client.get_workflow_handle(_unescaped(name)).describe()
            raw = described.raw_description
            is_replayed = raw.pending_workflow_task.attempt > 1
            begun = {each.activity_id for each in raw.pending_activities if each.state == _STARTED}
            if not is_replayed and not begun:
                return
            handle = client.get_workflow_handle(described.id, run_id=described.run_id)
            async for event in handle.fetch_history_events():
                if wanted.payload_id.encode() not in event.SerializeToString():
                    continue
                if is_replayed:
                    await handle.terminate(reason=str(gone))
                    _log.warning("the workflow %r was terminated: %s", described.id, gone)
                    return
                activity_id = event.activity_task_scheduled_event_attributes.activity_id
                if activity_id in begun:
                    call = client.get_async_activity_handle(
                        workflow_id=described.id, run_id=described.run_id, activity_id=activity_id
                    )
                    await call.fail(gone)
        except RPCError as error:
            # It has ended meanwhile, or will be tried again, and so will this.
            _log.debug("who needs a payload of %r can't be told: %s", wanted.thread, error)


# ── what is remembered, and what waits ──


class _Kept(NamedTuple):
    """A payload as it was serialized, and how many differences lead to it."""

    raw: bytes
    depth: int


class _Link(NamedTuple):
    """An item of the log: a whole payload, or the difference to its base."""

    base: str | None
    depth: int
    data: bytes


class _Wanted(NamedTuple):
    """What a claim says. ``until_s`` is 0 for a payload that doesn't expire."""

    thread: str
    payload_id: str
    until_s: int


class _Job(NamedTuple):
    """Payloads that a caller waits for."""

    subject: str | None
    raws: list[bytes]
    claims: asyncio.Future[list[StorageDriverClaim]]

    def succeed(self, claims: list[StorageDriverClaim]) -> None:
        if not self.claims.done():
            self.claims.set_result(claims)

    def fail(self, error: Exception) -> None:
        if not self.claims.done():
            self.claims.set_exception(error)


class _Shelf:
    """One thread: its payloads that are remembered, the newest last, and those that wait to be stored."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.payloads: OrderedDict[str, _Kept] = OrderedDict()
        self.waiting: list[_Job] = []
        self.writer: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return not self.waiting and (self.writer is None or self.writer.done())

    def newest(self) -> dict[str, _Kept]:
        return {name: self.payloads[name] for name in list(self.payloads)[-_CANDIDATES_MAX:]}

    def take(self) -> list[_Job]:
        """What is to be committed next: all that wait, as long as it isn't too much, without those whose
        callers have gone."""
        batch: list[_Job] = []
        size = 0
        while self.waiting and size < _BATCH_BYTES_MAX:
            job = self.waiting.pop(0)
            if not job.claims.cancelled():
                batch.append(job)
                size += sum(map(len, job.raws))
        return batch


class _Shelves:
    """The payloads that are remembered of all threads, within a number of bytes; those used last stay."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._shelves: OrderedDict[str, _Shelf] = OrderedDict()

    def get(self, name: str) -> _Shelf:
        shelf = self._shelves.get(name)
        if shelf is None:
            shelf = self._shelves[name] = _Shelf(name)
        self._shelves.move_to_end(name)
        return shelf

    def find(self, name: str, payload_id: str) -> _Kept | None:
        shelf = self._shelves.get(name)
        return None if shelf is None else shelf.payloads.get(payload_id)

    def keep(self, name: str, payload_id: str, kept: _Kept) -> None:
        payloads = self.get(name).payloads
        before = payloads.pop(payload_id, _NOTHING)
        payloads[payload_id] = kept
        self._bytes += len(kept.raw) - len(before.raw)
        self._trim()

    def _trim(self) -> None:
        for shelf in list(self._shelves.values()):
            is_one_too_many = len(self._shelves) > _SHELVES_MAX
            while shelf.payloads and (is_one_too_many or self._bytes > self._bytes_max):
                self._bytes -= len(shelf.payloads.popitem(last=False)[1].raw)
            if shelf.payloads:
                return
            if shelf.is_idle:
                del self._shelves[shelf.name]

    async def settle(self) -> None:
        """Wait until nothing waits to be stored."""
        writers = [shelf.writer for shelf in self._shelves.values() if shelf.writer is not None]
        await asyncio.gather(*writers, return_exceptions=True)


# ── payloads and differences: no I/O ──

_NOTHING = _Kept(b"", 0)


def _unescaped(part: str) -> str:
    return part.replace("%2F", "/").replace("%25", "%")


async def _run(aside: Callable[..., Any], size: int, fn: Callable[..., T], *args: Any) -> T:
    """What ``fn`` returns; for many bytes it works on another thread."""
    if size < _ASIDE_BYTES_MIN:
        return fn(*args)
    found: T = await aside(fn, *args)
    return found


def _check_size(raw: bytes, bytes_max: int) -> None:
    if len(raw) > bytes_max - _ITEM_BYTES:
        raise _failure(
            TOO_LARGE,
            f"a payload has {len(raw):,} bytes; this store takes up to {bytes_max - _ITEM_BYTES:,}: hand "
            "over less, or open the store with limits=Limits(payload_bytes_max=…)",
        )


def _mark(raw: bytes, secret: bytes) -> str:
    """The name of a payload: the same for the same bytes. Of a person's payload it says nothing to anybody
    who hasn't the secret, which is sealed under the person's key."""
    return blake2b(raw, digest_size=_ID_BYTES, key=secret).hexdigest()


def _secret(thread: AsyncThread, subject: str) -> bytes:
    """The key for names of a person's payloads in a thread; made if there is none, for the next commit."""
    secrets = thread.state.setdefault(SECRETS, [])
    for each in secrets:
        if isinstance(each, Personal):
            name, secret = each.value
            if name == subject:
                return bytes(secret)
    secret = thread.core.runtime.random_bytes(_SECRET_BYTES)
    secrets.append(Personal(subject, [subject, secret]))
    return secret


def _value(personal: Personal) -> Any:
    return personal.value


def _difference(raw: bytes, secret: bytes, known: dict[str, _Kept]) -> tuple[str | None, bytes]:
    """What a payload is to be based on, if anything, and what is to be kept of it then."""
    base_id = _choose_base(raw, secret, known)
    return base_id, _pack(raw, b"" if base_id is None else known[base_id].raw)


def _choose_base(raw: bytes, secret: bytes, known: dict[str, _Kept]) -> str | None:
    """Of payloads that are remembered the one with which this one has most in common, by samples.

    One that has another name under this secret is somebody else's, or was erased: it may be gone before
    what would be based on it.
    """
    best, common = None, len(raw) * _COMMON_PART_MIN
    if len(raw) < _DIFFERENCE_BYTES_MIN:
        return None
    for payload_id, kept in sorted(known.items(), key=lambda each: len(each[1].raw), reverse=True):
        short, long = sorted((kept.raw, raw), key=len)
        if len(short) <= common:
            return best
        if len(short) < _DIFFERENCE_BYTES_MIN or kept.depth >= CHAIN_MAX:
            continue
        shared = len(short) * _common_part(short, long)
        if shared > common and _mark(kept.raw, secret) == payload_id:
            best, common = payload_id, shared
    return best


def _common_part(short: bytes, long: bytes) -> float:
    """How much of one is in the other, by samples."""
    places = range(0, len(short) - _SAMPLE_BYTES, (len(short) - _SAMPLE_BYTES) // _SAMPLES)
    hits = 0
    for at in places:
        sample, last = short[at : at + _SAMPLE_BYTES], at + len(long) - len(short)
        # Nearly always about where it was, or further on by what was added.
        is_near = long.find(sample, max(0, at - _NEAR_BYTES), last + _NEAR_BYTES) >= 0
        hits += is_near or sample in long
    return hits / len(places)


def _pack(raw: bytes, base: bytes) -> bytes:
    """A payload compressed; what it has in common with its base is only referred to, wherever it stands."""
    if not base:
        return zstandard.ZstdCompressor(write_checksum=True).compress(raw)
    # As large as it takes to find all that is in the base: the usual tables end at a megabyte.
    table = max(_TABLE_BITS_MIN, min(_TABLE_BITS_MAX, len(base).bit_length() - 2))
    parameters = zstandard.ZstdCompressionParameters(
        window_log=max(10, min(_WINDOW_BITS_MAX, (len(raw) + len(base)).bit_length())),
        hash_log=table,
        chain_log=table,
        min_match=6,
        strategy=zstandard.STRATEGY_FAST,
        write_checksum=True,
    )
    return zstandard.ZstdCompressor(dict_data=_dictionary(base), compression_params=parameters).compress(raw)


def _unpack(data: bytes, base: bytes, bytes_max: int) -> bytes:
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size > bytes_max:
            raise StateCorruptedError(
                f"a payload has {size:,} bytes, more than the {bytes_max:,} of payload_bytes_max: open the "
                "store with limits=Limits(payload_bytes_max=…)"
            )
        return zstandard.ZstdDecompressor(dict_data=_dictionary(base) if base else None).decompress(data)
    except zstandard.ZstdError as error:
        raise StateCorruptedError(f"a payload can't be made out of its difference: {error}") from None


def _dictionary(base: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _end(thread: AsyncThread, ttl: timedelta) -> str:
    """When the time of a thread is over, in seconds, as things stand."""
    assert thread.head is not None
    return str(-(-(thread.head.at_us + ttl // _MICROSECOND) // 1_000_000))


async def _renew(thread: AsyncThread, ttl: timedelta) -> None:
    """Nothing new was stored, and still the payloads have to live for so long from now on."""
    assert thread.head is not None
    age_us = thread.core.runtime.now_us() - thread.head.at_us
    if (
        age_us > min(_RENEWED_US, ttl // _MICROSECOND // _RENEWED_PART)
        or thread.head.ttl_us != ttl // _MICROSECOND
    ):
        await thread.expire(ttl)


def _failure(kind: str, message: str) -> ApplicationError:
    """What Temporal doesn't retry."""
    return ApplicationError(message, type=kind, non_retryable=True)
