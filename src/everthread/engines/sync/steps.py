# Generated from src/everthread/engines/aio/steps.py by tools/twin.py: change that, then run: make twin
"""A step that knows where its workflow stands, and the verbs that are made of it.

The engine's history holds a pointer, the thread holds the state. Whatever the engine replays, it replays the
pointer. If another run of the workflow has gone on from there, the thread is rewound to it first; whoever
that run was can't write any more."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, cast

from everthread.arguments import check_count, check_name
from everthread.engines.line import CLAIM, LEFT, OWNER, RUN, SKIPPED, Place, place_of
from everthread.engines.pointers import Execution, ThreadRef, number_of
from everthread.errors import (
    ConflictError,
    FencedError,
    InvalidValueError,
    ThreadExistsError,
    ThreadNotFoundError,
    UsageError,
    VersionNotFoundError,
    VersionPrunedError,
)
from everthread.sandboxes.step_note import StepNote, current_step
from everthread.sessions.records import REASONS
from everthread.sessions.usage import checked_counts
from everthread.threads.lifetimes import Lifetime, ttl_us
from everthread.threads.sync.core import RunError
from everthread.threads.sync.fork import Terms, begin_again
from everthread.threads.sync.keys import rewind_noted
from everthread.threads.sync.step import Step
from everthread.versions import RunToken, Version

if TYPE_CHECKING:
    from everthread.threads.sync.core import StepRun
    from everthread.threads.sync.merge import Choice
    from everthread.threads.sync.past import Past
    from everthread.threads.sync.store import ThreadStore
    from everthread.threads.sync.thread import Thread

Mode = Literal["new", "continue", "fork"]
#: How often an effect is made: once on the thread, or once in each execution of the workflow.
EffectScope = Literal["thread", "execution"]


class EngineStep(Step):
    """A step, as ``thread.step()`` gives one, with the pointer to what it made."""

    def __init__(
        self, thread: Thread, place: Place, attempt: int, joined: StepRun | None, **options: Any
    ) -> None:
        super().__init__(thread, place.key, attempt, place.slot, **options)
        self._run = joined
        self._is_fresh = True
        self._place_in_run = place

    def close_run(self) -> None:
        """Let nothing more of the run be written but this step, which ends it wherever the thread is by then:
        what is in progress may land until this step does, also a rewind."""
        if self._run is not None:
            self._run.close()
            self._stood = None

    @property
    def ref(self) -> ThreadRef:
        """Where the workflow stands after this step; before the step is recorded, where it stood."""
        place = self._place_in_run
        version = place.pointer if self.version is None else self.version.id
        return ThreadRef(self.thread.name, version, place.where.run, str(place.key[0]), place.scope)

    def call(self, key: str, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        """Call ``fn``, which has an effect on the world, at most once for this key: see
        :meth:`Step.call`. If another execution of the workflow made the effect, its recorded result is
        returned, the version of this step notes that under ``skipped``, and the first such call of a run logs
        a warning. With ``open_thread(effects="execution")`` each execution makes it once, and ``@`` and the
        execution's id follow the key in the ledger.
        """
        scope = self._place_in_run.scope
        stored_key = f"{key}@{scope}" if scope else key
        result = super().call(stored_key, fn, *args, **options)
        earlier = None if self._run is None else self._run.skipped.get(stored_key)
        if earlier is not None:
            noted = dict(self._metadata or {})
            self._metadata = {**noted, SKIPPED: {**noted.get(SKIPPED, {}), key: earlier}}
        return result


def enter_step(
    store: ThreadStore,
    ref: ThreadRef,
    key: Sequence[str | int],
    where: Execution,
    *,
    slot: int | None = None,
    resolve: Choice = None,
    label: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> AbstractContextManager[EngineStep]:
    """A step of the workflow that stands at ``ref``, recorded once under ``key``, which is unique in its run.

    If the thread has gone on from ``ref`` by a run that counts no more, it is rewound to there. What runs in
    parallel from one pointer are slots of one key. Raises :class:`FencedError` if a newer run has come, if a
    later attempt has, if this run itself has gone back behind ``ref``, or if it has ended, and
    :class:`VersionPrunedError` if that version was pruned: then nothing is written.
    """
    options: dict[str, Any] = {"resolve": resolve, "label": label, "metadata": metadata}
    return _entered(store, ref, key, where, slot=slot, **options)


@contextmanager
def _entered(
    store: ThreadStore,
    ref: ThreadRef,
    key: Sequence[str | int],
    where: Execution,
    *,
    slot: int | None = None,
    ends: bool = False,
    metadata: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[EngineStep]:
    """:func:`enter_step`; ``ends`` for the step that ends the run."""
    is_entered = False
    try:
        ref = _own(store, ref, where, key, slot)
        place = place_of(ref, key, slot, where)
        thread = store.thread(ref.thread)
        run, before, is_taken_back = _stand(thread, place, ends)
        attempt = before + where.attempt
        step = EngineStep(
            thread,
            place,
            attempt,
            run,
            redo=is_taken_back,
            metadata={**(metadata or {}), **place.metadata(attempt)},
            base=None if ends else ref.version,
            run=_token(where),
            **options,
        )
        with step:
            is_entered = True
            outside = current_step.get()
            current_step.set(StepNote(thread.name, place.key, slot, where.run, step.attempt))
            try:
                yield step
            finally:
                current_step.set(outside)
    except VersionPrunedError as error:
        if is_entered:
            # What the caller's own code asked for.
            raise
        raise _pruned(ref) from error
    if thread.handle.vouched is not None and thread.handle.vouched[0] == run.id:
        # The next step of this process, on a handle of its own, needn't ask again.
        run.vouched = thread.handle.vouched[1]


def _pruned(ref: ThreadRef) -> VersionPrunedError:
    """That the version which a workflow points to is gone, and what to do about it."""
    return VersionPrunedError(
        f"version {number_of(ref.version)} of {ref.thread!r}, which this workflow points to, was pruned by "
        "store.gc(), so that it can't go on from there. Begin another workflow on the thread as it is, with "
        f'open_thread({ref.thread!r}, mode="continue"), and let retention keep versions for as long as '
        "workflows come back to them: Retention(keep_within=…), or thread.pin(version, until=…)"
    )


def read_at(store: ThreadStore, ref: ThreadRef) -> Thread | Past:
    """The thread as it was where the workflow stands. Raises :class:`VersionPrunedError`."""
    thread = store.thread(ref.thread)
    if ref.version is None:
        return thread
    try:
        return thread.at(ref.version)
    except VersionPrunedError as error:
        raise _pruned(ref) from error


def _token(where: Execution) -> RunToken:
    run, since = where.claim or where.run, where.started or None
    return RunToken(run, since, where.owner, where.execution_id, where.guest_of)


def _join(thread: Thread, where: Execution, ends: bool = False) -> StepRun:
    """Let this run hold the thread, and stand on its newest version. Raises :class:`FencedError` if a newer
    one has come, or if this one has ended. From here on no older run can write: what the line holds then
    stays so."""
    if thread.core.join_run is None:
        raise UsageError("this store knows nothing of runs: open it with everthread.open_async()")
    run = thread.core.join_run(thread, _token(where), ends=ends)
    handle = thread.handle
    standing = handle.head.hash if handle.head is not None else b""
    if standing != run.vouched and run.enter(_token(where)):
        thread.refresh()
    else:
        # The lease was read after this version: entering the step needn't read it again.
        handle.vouched = (run.id, standing)
    return run


def _stand(thread: Thread, place: Place, ends: bool) -> tuple[StepRun, int, bool]:
    """Bring the thread to where the workflow stands; this run, how often other runs have begun this very step
    there, and whether the thread still holds it although the engine has taken it back."""
    if place.pointer is not None and thread.head is None:
        raise ThreadNotFoundError(f"the thread {thread.name!r}, which this workflow works on, is gone")
    while True:
        run = _join(thread, place.where, ends)
        if thread.head is None or place.pointer is None or thread.head.id == place.pointer:
            return run, 0, False
        reached, versions = _since(thread, place)
        if reached and all(place.fits(version) for version in versions):
            return run, place.attempts_before(versions), place.was_taken_back(versions)
        if not reached and versions and versions[-1].metadata.get(CLAIM) == place.claim:
            if ends:
                # The run was stopped while it went back, and wasn't told that it had. It ends where it is.
                return run, 0, False
            raise FencedError(
                f"the step {place.key!r} must stop: its own run has gone back behind {place.pointer}",
                attempt=place.where.attempt,
                newest=place.where.attempt,
            )
        target = _furthest(thread, place) if place.is_early else place.pointer
        if target == thread.head.id:
            return run, place.attempts_before(versions), place.was_taken_back(versions)
        try:
            noted = {RUN: place.where.run, CLAIM: place.claim}
            rewind_noted(thread, thread.handle.find_version(target or ""), noted)
        except ConflictError:
            thread.refresh()


def _since(thread: Thread, place: Place) -> tuple[bool, list[Version]]:
    """The versions after the pointer that led to the head, newest first, and whether the pointer led there
    too. If not, the last of them is the rewind that went behind it. Reading ends at the first that doesn't
    fit."""
    seq = number_of(place.pointer)
    below: int | None = None
    found: list[Version] = []
    for version in thread.history(limit=None):
        if version.seq <= seq:
            return version.id == place.pointer, found
        if below is not None and version.seq > below:
            # Left behind by a rewind.
            continue
        found.append(version)
        if version.kind == "rewind":
            below = number_of(version.source)
        if (below is not None and below < seq) or not (place.fits(version) or place.is_early):
            break
    return False, found


def _furthest(thread: Thread, place: Place) -> str | None:
    """The version to go back to that keeps what siblings have recorded, on whatever line."""
    seq, found = number_of(place.pointer), []
    for version in thread.history(limit=None):
        if version.seq <= seq:
            break
        found.append(version)
    return place.furthest(found[::-1])


# ── runs that an engine has forked ───────────────────────────────────────────────────────────


def _is_foreign(ref: ThreadRef, where: Execution) -> bool:
    """Whether a pointer leads to a thread of the run that this one is a fork of."""
    return bool(where.forked_from) and ref.run != where.run


def _own_name(ref: ThreadRef, run: str) -> str:
    """What the thread of a fork is called, whose pointer came from a thread of another run."""
    return check_name(f"{ref.thread.removesuffix(f'~{ref.run}')}~{run}", "thread name")


def _own(
    store: ThreadStore,
    ref: ThreadRef,
    where: Execution,
    key: Sequence[str | int] = (),
    slot: int | None = None,
) -> ThreadRef:
    """The pointer on a thread of the run's own. A fork's begins with what the workflow stood on, and with
    siblings of this step that are done in its history; it is made once."""
    if not _is_foreign(ref, where):
        return ref
    name = _own_name(ref, where.run)
    if (store.thread(name)).head is None:
        source = _source(store, ref, where)
        place = place_of(ref, key, slot, where)
        at = _furthest(source, place) if place.is_early else ref.version
        # Another step of this run may have come first.
        with suppress(ThreadExistsError):
            source.fork(name, at=at, key=f"engine/fork/{where.run}")
    return replace(ref, thread=name)


def _source(store: ThreadStore, ref: ThreadRef, where: Execution) -> Thread:
    """The thread that a fork is made of. If the other run was a fork itself, it is that one's own, though the
    pointer may be from before."""
    thread = store.thread(_own_name(ref, where.forked_from))
    if thread.head is not None and ref.version is not None:
        with suppress(VersionNotFoundError):
            thread.handle.find_version(ref.version)
            return thread
    thread = store.thread(ref.thread)
    if thread.head is None:
        raise ThreadNotFoundError(f"the thread {ref.thread!r}, which this workflow works on, is gone")
    return thread


def _open_fork(store: ThreadStore, where: Execution, name: str, **options: Any) -> ThreadRef:
    """:func:`open_thread` in a run that was forked from another: on a thread of its own, in every mode."""
    own = f"{name}~{where.run}"
    unforked = replace(where, forked_from="")
    if options["mode"] == "continue":
        options["source"] = None
    if (store.thread(own)).head is None:
        if options["mode"] == "continue":
            # Where the other run has begun, if it has.
            version = _opened(store, name, where)
            _own(store, ThreadRef(name, version), where)
        else:
            _fork_beginning(store, where, name, own, options)
    try:
        return open_thread(store, unforked, name=own, **options)
    except ThreadExistsError:
        # It was made when this run was forked at a later point, and has gone back since.
        if _opened(store, own, where) is None:
            raise
        options |= {"mode": "continue", "source": None}
        return open_thread(store, unforked, name=own, **options)


def _fork_beginning(
    store: ThreadStore, where: Execution, name: str, own: str, options: dict[str, Any]
) -> None:
    """Let the thread of a fork begin with the first version of the thread that the other run began: so it has
    the effect ledger of that one, as forks at later steps have."""
    for other in (_own_name(ThreadRef(name), where.forked_from), name):
        thread = store.thread(other)
        if thread.head is None:
            continue
        line, _ = thread.handle.require()
        if options["mode"] == "new":
            first = thread.handle.find_version(1)
            is_ours = first.metadata.get(OWNER) == _owner(where)
        else:
            first = _first(thread) if line.parent else thread.handle.find_version(1)
            is_ours = (first.key or "").startswith(_fork_key(where))
        if is_ours:
            with suppress(ThreadExistsError):
                thread.fork(own, at=first, key=f"{_fork_key(where)}{where.run}")
        return


def _opened(store: ThreadStore, name: str, where: Execution) -> str | None:
    """The version at which the first run of the workflow opened a thread; ``None`` if it never did."""
    thread = store.thread(name)
    if thread.head is not None:
        for recorded in thread.steps():
            if recorded.key == (where.origin, "open"):
                return recorded.version.id
    return None


# ── verbs ────────────────────────────────────────────────────────────────────────────────────


def open_thread(
    store: ThreadStore,
    where: Execution,
    *,
    mode: Mode = "new",
    name: str,
    source: ThreadRef | None = None,
    system: str | None = None,
    prepare: Callable[..., Sequence[Any]] | None = None,
    transform: Callable[..., Any] | None = None,
    effects: EffectScope = "thread",
    agent: str | None = None,
    ttl: Lifetime = None,
) -> ThreadRef:
    """The pointer that a workflow begins with. Asked again, by whatever run of it, it gives the same
    beginning.

    ``new`` begins an empty thread with a ``system`` message; the same workflow may begin it anew, anybody
    else gets :class:`ThreadExistsError`. ``continue`` goes on with a thread as it stands, or raises
    :class:`ThreadNotFoundError`; with a ``source``, from that version of it, so that a child workflow which
    is begun again doesn't see what it wrote before. ``fork`` begins with what ``source`` holds; ``prepare``
    and ``transform`` are those of ``thread.fork()``. A later execution of the workflow begins its fork anew,
    on the same thread. With ``effects="execution"`` each execution of the workflow makes its effects once; by
    default an effect is made once on the thread, whichever execution calls it. ``agent`` is
    recorded with the run. With a ``ttl`` the thread expires when nothing was written to it for that long: see
    ``thread.expire()``.
    """
    lifetime_us = ttl_us(ttl)
    name = check_name(name, "thread name")
    if effects not in ("thread", "execution"):
        raise InvalidValueError(f'effects must be "thread" or "execution", not {effects!r}', path="effects")
    if where.forked_from:
        options: dict[str, Any] = {"prepare": prepare, "transform": transform, "effects": effects}
        options |= {"agent": agent, "ttl": ttl}
        return _open_fork(store, where, name, mode=mode, source=source, system=system, **options)
    if mode == "new":
        version: str | None = _begin(store, where, name)
    elif mode == "continue":
        if (store.thread(name)).head is None:
            raise ThreadNotFoundError(f'there is no thread {name!r} to go on with: mode="new" begins one')
        if source is not None and source.thread != name:
            raise InvalidValueError(
                f'source must point to {name!r} with mode="continue", not to {source.thread!r}', path="source"
            )
        version = None if source is None else source.version
    elif mode == "fork":
        if source is None:
            raise InvalidValueError('mode="fork" needs source=, the pointer to what is forked', path="source")
        terms = Terms(prepare, transform)
        version = _fork(store, where, name, source, terms)
    else:
        raise InvalidValueError(f'mode is "new", "continue" or "fork", not {mode!r}', path="mode")
    scope = where.execution_id if effects == "execution" else ""
    ref = ThreadRef(name, version, where.run, where.origin or where.run, scope)
    with enter_step(store, ref, ("open",), where, label="open") as step:
        if not step.done:
            if system is not None and mode == "new":
                step.messages.append({"role": "system", "content": system})
            if ttl is not None:
                step.thread.handle.ttl_us = lifetime_us
            step.result = mode
    if agent is not None and step.thread.core.join_run is not None:
        (step.thread.core.join_run(step.thread, _token(where))).describe(agent=agent)
    return step.ref


def _begin(store: ThreadStore, where: Execution, name: str) -> str:
    """The first version of a thread, which is empty."""
    owner = _owner(where)
    thread = store.thread(name)
    if thread.head is None:
        try:
            thread.commit(metadata={RUN: where.run, OWNER: owner})
        except ConflictError:
            thread.discard()
            thread.refresh()
    first = thread.handle.find_version(1)
    if first.metadata.get(OWNER) != owner:
        raise ThreadExistsError(
            f"a thread {name!r} exists already, and another workflow began it: "
            'mode="continue" goes on with it'
        )
    return first.id


def _fork(store: ThreadStore, where: Execution, name: str, source: ThreadRef, terms: Terms) -> str:
    """Return the first version of a fork. A retry, and a later run of the workflow, find the one that was
    made; a later execution, as after a reset of the parent workflow, begins it anew."""
    parent = store.thread(source.thread)
    key = _fork_key(where)
    hooks: dict[str, Any] = {"prepare": terms.prepare, "transform": terms.transform}
    try:
        fork = parent.fork(name, at=source.version, key=f"{key}{where.origin or where.run}", **hooks)
        return (_first(fork)).id
    except VersionPrunedError as error:
        raise _pruned(source) from error
    except ThreadExistsError:
        fork = store.thread(name)
        if fork.head is None:
            raise
        line, _ = fork.handle.require()
        first = _first(fork) if line.parent else None
        if first is None or not (first.key or "").startswith(key):
            raise
    # The thread keeps its name, and its ledger: what an earlier execution did to the world isn't done again.
    begun = ThreadRef(name, first.id, where.run, where.origin or where.run)
    with enter_step(store, begun, ("fork",), where, label="fork") as step:
        if not step.done:
            past = read_at(store, replace(source, version=source.version or _head_of(parent)))
            begin_again(cast("Past", past), step.thread, terms)
    return step.ref.version or first.id


def _owner(where: Execution) -> str:
    return where.owner or where.origin or where.run


def _fork_key(where: Execution) -> str:
    """Return what the keys of forks begin with that executions of one workflow make."""
    return f"engine/fork/{sha256(_owner(where).encode()).hexdigest()[:32]}/"


def _head_of(thread: Thread) -> str:
    if thread.head is None:
        raise ThreadNotFoundError(f"there is no thread {thread.name!r} to fork")
    return thread.head.id


def _first(fork: Thread) -> Version:
    """Return the first version that a fork doesn't share with the thread that it was forked from."""
    line, _ = fork.handle.require()
    return fork.handle.find_version(line.parent_seq + 1)


def append(
    store: ThreadStore,
    ref: ThreadRef,
    messages: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    where: Execution,
    *,
    key: Sequence[str | int] | None = None,
    slot: int | None = None,
) -> ThreadRef:
    """Append one message or several, each with an ``"id"`` that its sender chose: once, however often it is
    told, also to later runs. One that the thread holds already stays as it is; if it holds all of them
    nothing is written, and the pointer stays. ``key`` and ``slot`` are for results of parallel tools."""
    told = [messages] if isinstance(messages, Mapping) else list(messages)
    ids = [message.get("id") for message in told]
    if not ids or not all(isinstance(each, str) and each for each in ids):
        raise InvalidValueError('each message needs an "id" that its sender chose', path="messages")
    digest = sha256(json.dumps(ids).encode()).hexdigest()[:32]
    with enter_step(store, ref, key or ("append", digest), where, slot=slot) as step:
        if not step.done:
            log = step.thread.messages
            new = [message for message in told if log.find(message["id"]) is None]
            step.messages.extend([dict(message) for message in new])
            if not new:
                step.leave()
    return step.ref


def rewind(store: ThreadStore, ref: ThreadRef, to: ThreadRef, where: Execution) -> ThreadRef:
    """Take back what came after ``to``: once, a retry finds it done. Steps of this run that are still under
    way from a version between the two can't be recorded any more."""
    if _is_foreign(to, where):
        to = replace(to, thread=_own_name(to, where.run))
    own = _own_name(ref, where.run) if _is_foreign(ref, where) else ref.thread
    if to.version is None or ref.version is None or to.thread != own:
        raise InvalidValueError("rewind() goes from one version of a thread to another of it", path="to")
    ref = _own(store, ref, where)
    place = place_of(ref, ("rewind",), None, where)
    thread = store.thread(ref.thread)
    if thread.head is None:
        raise ThreadNotFoundError(f"the thread {ref.thread!r}, which this workflow works on, is gone")
    while True:
        _join(thread, where)
        made = _rewound(thread, place)
        if made is None:
            noted = {RUN: where.run, CLAIM: place.claim, LEFT: ref.version}
            try:
                made = rewind_noted(thread, thread.handle.find_version(to.version), noted)
            except VersionPrunedError as error:
                raise _pruned(to) from error
            except ConflictError:
                thread.refresh()
                continue
        return ThreadRef(ref.thread, made.id, where.run, str(place.key[0]), ref.scope)


def _rewound(thread: Thread, place: Place) -> Version | None:
    """The rewind from the pointer that this run has made already."""
    seq = number_of(place.pointer)
    for version in thread.history(limit=None):
        if version.seq <= seq:
            return None
        if (version.metadata.get(LEFT), version.metadata.get(CLAIM)) == (place.pointer, place.claim):
            return version
    return None


def end(
    store: ThreadStore,
    ref: ThreadRef,
    where: Execution,
    reason: str = "completed",
    error: tuple[str, str] | None = None,
    *,
    agent: str | None = None,
    turns: int | None = None,
    usage: Mapping[str, Any] | None = None,
) -> ThreadRef:
    """Record why the run ends, and free the thread for others. A step as well: without it, a run that is
    reset to its very end would leave the thread where the run before had brought it. ``error`` is what
    :func:`named` makes of the exception that a run failed with. ``agent``, ``turns`` and ``usage`` are
    recorded with the run, as ``everthread runs`` shows them.

    From then on nothing of the run is written, whatever of it is still in progress; a retry finds the end.
    Raises :class:`InvalidValueError` if ``reason`` isn't one that a run can end for, or is none for an
    error."""
    if reason not in REASONS:
        raise InvalidValueError(f"a run ends with one of {', '.join(REASONS)}, not {reason!r}", path="reason")
    if error is not None and reason in ("completed", "waiting_for_input"):
        raise InvalidValueError(f"a run that ends with {reason!r} has no error to record", path="error")
    about: dict[str, Any] = {} if agent is None else {"agent": agent}
    if turns is not None:
        about["turns"] = check_count(turns, "turns")
    if usage is not None:
        about["usage"] = checked_counts(usage, {})
    ended = _ended(store, ref, where)
    if ended is None:
        with _entered(store, ref, ("end",), where, ends=True, label="end") as step:
            # Before the version of the end is written: whatever meets that version finds the run closed.
            step.close_run()
            if not step.done:
                step.result = reason
        ended = step.ref
    thread = store.thread(ended.thread)
    if thread.core.join_run is not None:
        # A retry may find the version, and the run still open. Its error is recorded once.
        failure = None if error is None else RunError(*error, f"end-{ended.version}")
        (thread.core.join_run(thread, _token(where), ends=True)).end(reason, failure, **about)
    return ended


def _ended(store: ThreadStore, ref: ThreadRef, where: Execution) -> ThreadRef | None:
    """Return where this run has ended, if an earlier attempt has recorded that."""
    own = _own(store, ref, where)
    place, thread = place_of(own, ("end",), None, where), store.thread(own.thread)
    if thread.head is None or thread.head.id == place.pointer:
        return None
    for version in thread.history(limit=None):
        if version.seq <= number_of(place.pointer):
            break
        if place.made(version):
            return ThreadRef(thread.name, version.id, where.run, str(place.key[0]), place.scope)
    return None
