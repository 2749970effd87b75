"""The payload driver by itself: what Temporal asks of a storage driver, and what threads add to it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriverActivityInfo,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

import everthread
from everthread import (
    AsyncStore,
    InvalidValueError,
    Limits,
    Retention,
    SealError,
    StateCorruptedError,
    StoreUnavailableError,
    UsageError,
)
from everthread.engines.temporal import payloads as payloads_module
from everthread.engines.temporal.payloads import CHAIN_MAX, LOG, PayloadDriver, _pack, _unpack
from everthread.testing.crash import run_until
from everthread.threads.runtime import Runtime
from tests.adapters.conftest import stored_bytes
from tests.unit.threads.tripwire import MOMENTS, cancelled_at, cancelled_when_suspended, open_tripped, run

WORKFLOW = "order-17"
THREAD = f"temporal/payloads/default/{WORKFLOW}"


def payload(data: bytes | str, **metadata: bytes) -> Payload:
    raw = data.encode() if isinstance(data, str) else data
    return Payload(metadata=metadata or {"encoding": b"json/plain"}, data=raw)


def workflow(workflow_id: str | None = WORKFLOW) -> StorageDriverStoreContext:
    return StorageDriverStoreContext(StorageDriverWorkflowInfo(namespace="default", id=workflow_id))


async def put(driver: PayloadDriver, *payloads: Payload, id: str = WORKFLOW) -> list[StorageDriverClaim]:
    return await driver.store(workflow(id), payloads)


async def get(driver: PayloadDriver, *claims: StorageDriverClaim) -> list[Payload]:
    return await driver.retrieve(StorageDriverRetrieveContext(), claims)


async def refusal(driver: PayloadDriver, claim: StorageDriverClaim) -> ApplicationError:
    """What a claim that nobody will ever be able to follow raises: Temporal isn't to try again."""
    with pytest.raises(ApplicationError) as caught:
        await get(driver, claim)
    assert caught.value.non_retryable
    return caught.value


def conversation(seed: int, first: int, calls: int, size: int) -> list[Payload]:
    """What a workflow hands to its model, call after call: all that was said so far, and a counter before
    and after it."""
    rng = random.Random(seed)
    said = [_words(rng, first)]
    found = []
    for call in range(calls):
        said += [_words(rng, size // 2), _words(rng, size - size // 2)]
        found.append(payload(json.dumps({"call": call, "messages": said, "usage": {"requests": call}})))
    return found


def _words(rng: random.Random, size: int) -> str:
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz      ", k=size))


def size_of(payloads: Sequence[Payload]) -> int:
    return sum(each.ByteSize() for each in payloads)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/payloads.db"


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/payloads.db"


@pytest.fixture
def on_store(url: str) -> Callable[[Callable[[AsyncStore], Coroutine[Any, Any, Any]]], Any]:
    """Runs an async function on a store, which is sound afterwards."""

    def started(work: Callable[[AsyncStore], Coroutine[Any, Any, Any]]) -> None:
        async def main() -> None:
            async with everthread.open_async(url) as store:
                await work(store)
                assert (await store.verify()).ok

        run(main())

    return started


# ── storing and retrieving ───────────────────────────────────────────────────────────────────────


def test_payloads_come_back_as_they_were(on_store: Any) -> None:
    given = [
        payload("null", encoding=b"binary/null"),
        payload(b"", encoding=b"json/plain", messageType=b"x"),
        payload(bytes(range(256)) * 300, encoding=b"binary/plain"),
        Payload(),
        payload('"Größe"'),
    ]

    async def work(store: AsyncStore) -> None:
        claims = await put(PayloadDriver(store), *given)
        assert await put(PayloadDriver(store)) == []
        assert len({claim.claim_data["id"] for claim in claims}) == len(given)
        for driver in (PayloadDriver(store), PayloadDriver(store)):
            assert await get(driver, *claims) == given
            assert await get(driver, *claims[::-1]) == given[::-1]

    on_store(work)


def test_a_conversation_that_grows_takes_little_more_than_its_last_state(sqlite: str) -> None:
    given = conversation(1, 60_000, 80, 2_000)

    async def main() -> None:
        async with everthread.open_async(sqlite) as store:
            driver = PayloadDriver(store)
            claims = [claim for each in given for claim in await put(driver, each)]
            items = await (await store.thread(THREAD)).log(LOG).read()
            assert sum(item["base"] is None for item in items) <= 1 + len(given) // CHAIN_MAX
            assert max(item["depth"] for item in items) <= CHAIN_MAX
            assert sum(len(item["data"]) for item in items) < 0.05 * size_of(given)
            # By another process, in any order.
            order = list(range(len(given)))
            random.Random(2).shuffle(order)
            other = PayloadDriver(store)
            for at in order:
                assert await get(other, claims[at]) == [given[at]]

    run(main())
    assert len(stored_bytes(sqlite)) < 0.05 * size_of(given)


def test_a_worker_that_only_read_a_payload_stores_the_next_as_a_difference_to_it(on_store: Any) -> None:
    first, second = conversation(3, 20_000, 2, 500)

    async def work(store: AsyncStore) -> None:
        claims = await put(PayloadDriver(store), first)
        other = PayloadDriver(store)
        await get(other, *claims)
        claims += await put(other, second)
        assert await get(PayloadDriver(store), *claims) == [first, second]
        items = await (await store.thread(THREAD)).log(LOG).read()
        assert items[1]["base"] == items[0]["id"]

    on_store(work)


def test_the_same_payload_again_is_there_already(on_store: Any) -> None:
    """A workflow that is replayed hands its payloads over again."""
    given = conversation(4, 5_000, 10, 300)

    async def work(store: AsyncStore) -> None:
        claims = [await put(PayloadDriver(store), each) for each in given]
        head = (await store.thread(THREAD)).head
        assert [await put(PayloadDriver(store), each) for each in given] == claims
        twice = await put(PayloadDriver(store), given[0], given[0])
        assert twice == claims[0] * 2
        assert (await store.thread(THREAD)).head == head

    on_store(work)


def test_what_a_workflow_task_stores_is_one_commit(on_store: Any) -> None:
    """Temporal calls the driver for each command; three tools that are called at the same time are three."""

    async def work(store: AsyncStore) -> None:
        driver = PayloadDriver(store)
        for task in range(1, 4):
            tools = [payload(f"task {task}, tool {number}") for number in range(3)]
            claims = await asyncio.gather(*(put(driver, each) for each in tools))
            head = (await store.thread(THREAD)).head
            assert head is not None
            assert head.seq == task
            assert await get(driver, *(claim for (claim,) in claims)) == tools

    on_store(work)


def test_two_workers_store_at_once_and_nothing_is_lost(sqlite: str) -> None:
    given = conversation(5, 10_000, 30, 500)

    async def main() -> None:
        async with everthread.open_async(sqlite) as one, everthread.open_async(sqlite) as two:
            drivers = [PayloadDriver(one), PayloadDriver(two)]
            # Some by both, some by one of them, in an order that nobody chose.
            calls = [put(drivers[at % 2], each) for at, each in enumerate(given)]
            calls += [put(drivers[(at + 1) % 2], each) for at, each in enumerate(given[::3])]
            rows = await asyncio.gather(*calls)
            claims = [claim for row in rows for claim in row]
            assert claims[len(given) :] == claims[: len(given) : 3]
            items = await (await one.thread(THREAD)).log(LOG).read()
            assert len({item["id"] for item in items}) == len(items) == len(given)
            for driver in (*drivers, PayloadDriver(one)):
                assert await get(driver, *claims[: len(given)]) == given
            assert (await one.verify()).ok

    run(main())


def test_a_driver_opens_and_closes_a_store_that_it_was_given_as_a_url(sqlite: str) -> None:
    async def main() -> None:
        driver = PayloadDriver(sqlite)
        claims = await asyncio.gather(*(put(driver, payload(f"{n}"), id=f"{n}") for n in range(4)))
        await driver.close()
        await driver.close()
        # Open again, where it is needed again.
        assert await get(driver, claims[0][0]) == [payload("0")]
        await driver.close()
        driver = PayloadDriver({"url": sqlite, "keyring": "memory:"}, subject="ann")
        await put(driver, payload("y"), id="2")
        await driver.close()
        async with everthread.open_async(sqlite) as store:
            given = PayloadDriver(store)
            await put(given, payload("x"))
            await given.close()
            assert [info.name async for info in store.threads("temporal/payloads/default/")][:2] == [
                "temporal/payloads/default/0",
                "temporal/payloads/default/1",
            ]

    run(main())


def test_no_two_targets_share_a_thread() -> None:
    targets = [
        None,
        *(
            StorageDriverWorkflowInfo(namespace=namespace, id=name)
            for namespace in ("default", "a", "a/b")
            for name in ("x", "b/x", "b%2Fx", "activities", "activities/1/r", "x" * 1000, "ü" * 1000, None)
        ),
        StorageDriverActivityInfo(namespace="default", id="1", run_id="r"),
        StorageDriverActivityInfo(namespace="default", id="1"),
    ]

    async def main() -> None:
        async with everthread.open_async("memory:") as store:
            driver = PayloadDriver(store)
            claims = []
            for number, target in enumerate(targets):
                claims += await driver.store(StorageDriverStoreContext(target), [payload(f"{number}")])
            names = {claim.claim_data["thread"] for claim in claims}
            assert len(names) == len(targets)
            assert all(name.startswith("temporal/payloads/") for name in names)
            assert await get(driver, *claims) == [payload(f"{number}") for number in range(len(targets))]
            assert driver.thread_name("b/x", "a") in names

    run(main())


@given(raw=st.binary(max_size=3000), base=st.binary(max_size=3000), cut=st.integers(0, 3000))
def test_any_difference_gives_the_payload_back(raw: bytes, base: bytes, cut: int) -> None:
    for old in (base, raw[:cut] + base + raw[cut:], b""):
        assert _unpack(_pack(raw, old), old, 10_000) == raw


# ── cut short ────────────────────────────────────────────────────────────────────────────────────


def test_a_call_that_is_cancelled_wherever_it_waits_harms_nobody(on_store: Any) -> None:
    given = conversation(6, 3_000, 40, 200)

    async def work(store: AsyncStore) -> None:
        driver = PayloadDriver(store)
        for nth in range(1, len(given)):
            cut, other = given[nth - 1 : nth + 1]
            beside = asyncio.ensure_future(put(driver, other))
            was_cut = await cancelled_when_suspended(nth, lambda cut=cut: put(driver, cut))  # type: ignore[misc]
            claims = [*await put(driver, cut), *await beside]
            assert await get(PayloadDriver(store), *claims) == [cut, other]
            assert await cancelled_when_suspended(nth, lambda claims=claims: get(driver, *claims)) or nth > 1  # type: ignore[misc]
            if not was_cut:
                break
        assert nth > 1

    on_store(work)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_retrieval_cut_at_any_call_of_the_store_can_be_repeated(tmp_path: Path, moment: str) -> None:
    given = conversation(7, 3_000, 5, 200)

    async def main() -> None:
        store, tripwire = await open_tripped(f"sqlite:///{tmp_path}/cut.db")
        claims = [claim for each in given for claim in await put(PayloadDriver(store), each)]
        nth = 1
        while True:
            driver = PayloadDriver(store)
            store.core.head_cache.clear()
            if not await cancelled_at(tripwire, nth, moment, lambda driver=driver: get(driver, claims[-1])):  # type: ignore[misc]
                break
            assert await get(driver, *claims) == given
            nth += 1
        assert nth > 2
        await store.close()

    run(main())


def test_a_loop_that_ends_while_payloads_are_stored_leaves_a_sound_store(sqlite: str) -> None:
    given = conversation(8, 3_000, 12, 200)

    async def begin(waits: int, each: Payload) -> None:
        store = await everthread.open_async(sqlite)
        call = asyncio.ensure_future(put(PayloadDriver(store), each))
        for _ in range(waits):
            await asyncio.sleep(0)
        call.cancel()

    async def finish() -> None:
        async with everthread.open_async(sqlite) as store:
            driver = PayloadDriver(store)
            claims = [claim for each in given for claim in await put(driver, each)]
            assert await get(PayloadDriver(store), *claims) == given
            assert (await store.verify()).ok

    for waits, each in enumerate(given):
        asyncio.run(begin(waits, each))
    asyncio.run(finish())


async def _store_until_killed(store: Any, argument: str) -> None:
    given = conversation(9, 3_000, 4, 200)
    async with everthread.open_async(argument) as opened:
        driver = PayloadDriver(opened, subject="ann")
        for each in given:
            for claim in await put(driver, each):
                print(json.dumps(dict(claim.claim_data)), flush=True)


@pytest.mark.parametrize("point", ["create:before", "create:after", "append:before", "append:after"])
def test_killed_while_storing_every_claim_that_was_given_holds(
    sqlite: str, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERTHREAD_KEYRING", str(tmp_path / "keyring"))
    crash = run_until(point, _store_until_killed, sqlite, nth=2 if "append" in point else 1, argument=sqlite)
    claims = [
        StorageDriverClaim(json.loads(line)) for line in crash.output.splitlines() if line.startswith("{")
    ]
    given = conversation(9, 3_000, 4, 200)

    async def look() -> None:
        async with everthread.open_async(sqlite) as store:
            driver = PayloadDriver(store, subject="ann")
            assert await get(driver, *claims) == given[: len(claims)]
            again = [claim for each in given for claim in await put(driver, each)]
            assert again[: len(claims)] == claims
            assert await get(PayloadDriver(store, subject="ann"), *again) == given
            assert (await store.verify()).ok

    run(look())


# ── persons ──────────────────────────────────────────────────────────────────────────────────────


def _person(target: Any) -> str | None:
    return None if target is None else str(target.id).partition("-")[0]


def test_after_an_erasure_a_claim_fails_once_and_says_so(sqlite: str) -> None:
    given = conversation(10, 3_000, 5, 200)
    said = payload('"My name is Ann Onymous."')

    async def main() -> None:
        async with everthread.open_async(sqlite) as store:
            driver = PayloadDriver(store, subject="ann")
            claims = [claim for each in (*given, said) for claim in await put(driver, each)]
            assert b"Onymous" not in stored_bytes(sqlite)
            assert await get(PayloadDriver(store), *claims) == [*given, said]
            report = await store.erase("ann")
            assert report
            assert report.sealed_values == len(claims) + 1
            # This one remembers them, the other doesn't.
            for each in (driver, PayloadDriver(store, subject="ann")):
                for claim in claims:
                    failure = await refusal(each, claim)
                    assert failure.type == "PayloadErased"
                    assert "erased" in str(failure)
            # Who comes back begins anew: nothing is based on what was erased, and no name is known again.
            later = [claim for each in (*given, said) for claim in await put(driver, each)]
            assert await get(PayloadDriver(store), *later) == [*given, said]
            assert not {c.claim_data["id"] for c in claims} & {c.claim_data["id"] for c in later}
            assert (await store.verify()).ok

    run(main())


def test_what_was_erased_by_another_process_is_no_base(sqlite: str) -> None:
    first, second = conversation(11, 10_000, 2, 200)

    async def main() -> None:
        async with everthread.open_async(sqlite) as here, everthread.open_async(sqlite) as there:
            driver = PayloadDriver(here, subject="ann")
            old = await put(driver, first)
            await there.erase("ann")
            new = await put(driver, second)
            assert await get(PayloadDriver(there, subject="ann"), *new) == [second]
            assert (await refusal(driver, *old)).type == "PayloadErased"

    run(main())


def test_a_claim_says_nothing_about_the_words_of_a_person(on_store: Any) -> None:
    """The same short answer can't be recognised in a history, nor tried out after an erasure."""
    yes = payload('"yes"')
    plain = blake2b(yes.SerializeToString(deterministic=True), digest_size=20).hexdigest()

    async def work(store: AsyncStore) -> None:
        driver = PayloadDriver(store, subject=_person)
        (ann,), (ben,) = await put(driver, yes, id="ann-1"), await put(driver, yes, id="ben-1")
        (other,) = await put(driver, yes, id="ann-2")
        ids = [claim.claim_data["id"] for claim in (ann, ben, other)]
        assert len({*ids, plain}) == 4
        assert await put(PayloadDriver(store, subject=_person), yes, id="ann-1") == [ann]

    on_store(work)


def test_nobodys_payload_is_based_on_somebody_elses(on_store: Any) -> None:
    """One workflow that is started for one person, and later for another."""
    first, second, third = conversation(12, 10_000, 3, 200)

    async def work(store: AsyncStore) -> None:
        subject: list[str | None] = ["ann"]
        driver = PayloadDriver(store, subject=lambda _: subject[0])
        ann = await put(driver, first)
        subject[0] = "ben"
        ben = await put(driver, second)
        subject[0] = None
        nobody = await put(driver, third)
        await store.erase("ann")
        assert (await refusal(PayloadDriver(store), *ann)).type == "PayloadErased"
        assert await get(PayloadDriver(store), *ben, *nobody) == [second, third]

    on_store(work)


def test_a_keyring_that_is_missing_is_no_erasure(sqlite: str) -> None:
    """It may come back: the failure is one that Temporal tries again."""

    async def main() -> None:
        async with everthread.open_async(sqlite) as store:
            claims = await put(PayloadDriver(store, subject="ann"), payload("x"))
        async with everthread.open_async(sqlite, keyring="memory:") as store:
            with pytest.raises(SealError, match="keyring"):
                await get(PayloadDriver(store), *claims)

    run(main())


# ── times ────────────────────────────────────────────────────────────────────────────────────────

DAY = 86_400


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000

    def runtime(self) -> Runtime:
        return Runtime(now_us=lambda: self.now_s * 1_000_000)


def _client(days: int, namespace: str = "default") -> Any:
    """As much of a client as is asked for the retention of its namespace."""

    async def describe_namespace(request: Any) -> Any:
        assert request.namespace == namespace
        retention = SimpleNamespace(ToTimedelta=lambda: timedelta(days=days))
        return SimpleNamespace(config=SimpleNamespace(workflow_execution_retention_ttl=retention))

    async def describe() -> Any:
        raise RPCError("there is no such workflow", RPCStatusCode.NOT_FOUND, b"")

    return SimpleNamespace(
        namespace=namespace,
        workflow_service=SimpleNamespace(describe_namespace=describe_namespace),
        get_workflow_handle=lambda _: SimpleNamespace(describe=describe),
    )


def test_payloads_expire_together_and_the_claim_says_so(url: str) -> None:
    given, clock = conversation(13, 3_000, 5, 200), Clock()

    async def main() -> None:
        async with everthread.open_async(url, runtime=clock.runtime()) as store:
            driver = PayloadDriver(store, ttl=timedelta(days=10))
            await driver.attach(_client(10))
            claims = []
            for each in given:
                claims += await put(driver, each)
                clock.now_s += 8 * DAY
            # The first one is older than ten days, and what is based on it isn't: they live as long.
            assert await get(PayloadDriver(store), *claims) == given
            clock.now_s += 2 * DAY
            for collected in (False, True):
                if collected:
                    assert (await store.gc()).expired_count == 1
                for claim in claims:
                    failure = await refusal(PayloadDriver(store), claim)
                    assert failure.type == "PayloadExpired"
                    assert "expired" in str(failure)
            # The same workflow again. Nothing is taken to be there that has gone.
            again = [claim for each in given for claim in await put(driver, each)]
            assert await get(PayloadDriver(store), *again) == given
            (unknown,) = await put(driver, payload("new"))
            await (await store.thread(THREAD)).delete()
            await put(driver, payload("other"))
            assert (await refusal(PayloadDriver(store), unknown)).type == "PayloadUnknown"
            assert (await store.verify()).ok

    run(main())


def test_storing_what_is_there_already_renews_its_time(url: str) -> None:
    clock = Clock()

    async def main() -> None:
        async with everthread.open_async(url, runtime=clock.runtime()) as store:
            driver = PayloadDriver(store, ttl=10 * DAY)
            await driver.attach(_client(3))
            for _ in range(4):
                claims = await put(driver, payload("the same"))
                assert await put(driver, payload("the same")) == claims
                clock.now_s += 9 * DAY
            head = (await store.thread(THREAD)).head
            assert head is not None
            assert head.seq == 4
            assert await get(driver, *claims) == [payload("the same")]

    run(main())


def test_a_ttl_shorter_than_the_retention_is_refused(on_store: Any) -> None:
    async def work(store: AsyncStore) -> None:
        driver = PayloadDriver(store, ttl=timedelta(days=2))
        with pytest.raises(UsageError, match="attach"):
            await put(driver, payload("x"))
        with pytest.raises(UsageError, match=r"2 days.*3 days.*longest time.*--retention"):
            await driver.attach(_client(3))
        with pytest.raises(UsageError, match="attach"):
            await put(driver, payload("x"))
        await driver.attach(_client(2))
        await put(driver, payload("x"))
        elsewhere = StorageDriverStoreContext(StorageDriverWorkflowInfo(namespace="other", id="x"))
        with pytest.raises(UsageError, match="'other'"):
            await driver.store(elsewhere, [payload("x")])
        await driver.attach(_client(1, "other"))
        await driver.store(elsewhere, [payload("x")])
        await driver.store(StorageDriverStoreContext(), [payload("x")])

    on_store(work)


def test_whatever_gc_prunes_every_payload_stays(on_store: Any) -> None:
    given = conversation(14, 3_000, 90, 100)

    async def work(store: AsyncStore) -> None:
        driver = PayloadDriver(store)
        claims = [claim for each in given for claim in await put(driver, each)]
        report = await store.gc(Retention(keep_last=1, keep_within=0, keep_labelled=False))
        assert report.versions > 50
        assert await get(PayloadDriver(store), *claims) == given
        claims += await put(driver, payload("after"))
        assert await get(PayloadDriver(store), claims[-1]) == [payload("after")]

    on_store(work)


# ── claims that nobody made ──────────────────────────────────────────────────────────────────────


def test_a_claim_that_nobody_made_is_refused_and_shows_nothing(on_store: Any) -> None:
    async def work(store: AsyncStore) -> None:
        driver = PayloadDriver(store)
        (mine,) = await put(driver, payload("mine"))
        foreign = await store.thread("users/ann")
        foreign.log(LOG).append({"id": mine.claim_data["id"], "base": None, "data": b"secret"})
        await foreign.commit()
        name, payload_id = mine.claim_data["thread"], mine.claim_data["id"]
        claims: list[Any] = [
            {},
            {"thread": name},
            {"id": payload_id},
            {"thread": "users/ann", "id": payload_id},
            {"thread": "temporal/payloads/../../users/ann", "id": payload_id},
            {"thread": "temporal/payloads/", "id": payload_id},
            {"thread": "temporal/payloads/" + "x" * 10_000_000, "id": payload_id},
            {"thread": "temporal/payloads/\0", "id": payload_id},
            {"thread": "temporal/payloads/default/nobody", "id": payload_id},
            {"thread": name, "id": "0" * 40},
            {"thread": name, "id": payload_id.upper() + "00"},
            {"thread": name, "id": "../" * 20},
            {"thread": name, "id": payload_id, "until": "soon"},
            {"thread": name, "id": payload_id, "until": "9" * 5_000},
            {"thread": name, "id": None},
        ]
        for claim in claims:
            failure = await refusal(driver, StorageDriverClaim(claim))
            assert failure.type == "PayloadUnknown"
            assert len(str(failure)) < 2_000
            assert "secret" not in str(failure)
        assert [info.name async for info in store.threads()] == [THREAD, "users/ann"]

    on_store(work)


def test_a_store_without_any_payload_is_taken_for_the_wrong_one(on_store: Any) -> None:
    """A worker that was pointed at another store doesn't fail all of its workflows for good."""

    async def work(store: AsyncStore) -> None:
        claim = StorageDriverClaim({"thread": THREAD, "id": "0" * 40})
        with pytest.raises(StoreUnavailableError, match="is it the one"):
            await get(PayloadDriver(store), claim)
        await put(PayloadDriver(store), payload("x"), id="another")
        assert (await refusal(PayloadDriver(store), claim)).type == "PayloadUnknown"

    on_store(work)


def test_a_log_that_somebody_else_wrote_to_is_damage_and_no_payload(on_store: Any) -> None:
    async def work(store: AsyncStore) -> None:
        first, second = conversation(15, 3_000, 2, 100)
        driver = PayloadDriver(store)
        claims = [*await put(driver, first), *await put(driver, second)]
        thread = await store.thread(THREAD)
        items = await thread.log(LOG).read()
        assert items[1]["base"] == items[0]["id"]
        for broken in ({"data": b"no zstd"}, {"data": "text"}, {"base": "0" * 40}, {"base": items[1]["id"]}):
            thread.log(LOG).truncate_from(items[1]["id"])
            thread.log(LOG).append({**items[1], **broken})
            await thread.commit()
            with pytest.raises(StateCorruptedError):
                await get(PayloadDriver(store), claims[1])
            assert await get(PayloadDriver(store), claims[0]) == [first]

    on_store(work)


# ── bounds ───────────────────────────────────────────────────────────────────────────────────────


def test_a_payload_that_is_too_large_is_refused_before_anything_is_written(url: str) -> None:
    async def main() -> None:
        limits = Limits(payload_bytes_max=200_000)
        async with everthread.open_async(url, limits=limits) as store:
            driver = PayloadDriver(store)
            with pytest.raises(ApplicationError, match="payload_bytes_max") as caught:
                await put(driver, payload("small"), payload(b"x" * 200_000))
            assert (caught.value.type, caught.value.non_retryable) == ("PayloadTooLarge", True)
            assert [info async for info in store.threads()] == []
            largest = payload(random.Random(1).randbytes(134_000))
            assert await get(PayloadDriver(store), *await put(driver, largest)) == [largest]

    run(main())


def test_what_is_remembered_is_bounded(on_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads_module, "_SHELVES_MAX", 20)
    given = conversation(16, 3_000, 60, 300)

    async def work(store: AsyncStore) -> None:
        driver = PayloadDriver(store, memory_bytes=50_000)
        shelves = driver._shelves
        claims = []
        for number, each in enumerate(given):
            claims += await put(driver, each, id=f"{number % 37}")
            assert shelves._bytes <= 50_000
        assert len(shelves._shelves) <= 21
        assert shelves._bytes == sum(
            len(kept.raw) for shelf in shelves._shelves.values() for kept in shelf.payloads.values()
        )
        assert await get(driver, *claims) == given
        assert await get(PayloadDriver(store, memory_bytes=0), *claims) == given
        for number in range(100):
            await refusal(driver, StorageDriverClaim({"thread": f"{THREAD}-{number}", "id": "0" * 40}))
        assert len(shelves._shelves) <= 21

    on_store(work)


def test_a_driver_is_told_what_it_can_be_given() -> None:
    with everthread.open("memory:") as blocking, pytest.raises(UsageError, match="open_async"):
        PayloadDriver(blocking)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="open_async"):
        PayloadDriver(everthread.open_async("memory:"))  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="time to live"):
        PayloadDriver("memory:", ttl=0)
    for options in (
        {"prefix": ""},
        {"subject": ""},
        {"subject": 3},
        {"memory_bytes": -1},
        {"driver_name": ""},
    ):
        with pytest.raises(UsageError):
            PayloadDriver("memory:", **options)  # type: ignore[arg-type]
    assert (PayloadDriver().name(), PayloadDriver(driver_name="b").name()) == ("everthread", "b")
    assert PayloadDriver(driver_name="b").type() == "everthread"


# ── it is a thread ───────────────────────────────────────────────────────────────────────────────


def test_payloads_move_with_their_store(sqlite: str, tmp_path: Path) -> None:
    given = conversation(17, 3_000, 40, 100)

    async def main() -> None:
        async with everthread.open_async(sqlite) as store:
            driver = PayloadDriver(store, subject=_person)
            claims = [claim for each in given for claim in await put(driver, each, id="ann-1")]
            stats = await store.stats()
            assert stats.threads[driver.thread_name("ann-1")].bytes > 0
            await store.export(tmp_path / "archive")
            async with everthread.open_async(f"file://{tmp_path}/files") as other:
                await store.copy_to(other)
                assert await get(PayloadDriver(other), *claims) == given
                assert (await other.verify()).ok
        async with everthread.open_async(f"sqlite:///{tmp_path}/imported.db") as imported:
            await imported.import_from(tmp_path / "archive")
            driver = PayloadDriver(imported, subject=_person)
            assert await get(driver, *claims) == given
            assert await put(driver, given[-1], id="ann-1") == claims[-1:]
            await imported.erase("ann")
            assert (await refusal(driver, claims[0])).type == "PayloadErased"

    run(main())
