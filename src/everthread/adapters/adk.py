"""Google ADK: sessions, their events and their scoped state, on threads.

``EverthreadSessionService``: a session of the ADK is a thread; its events are the log ``messages``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from typing import Any, Final
from uuid import uuid4

from everthread.adapters.bridge import (
    AnyStore,
    StoreInUse,
    below,
    framework,
    joined,
    keys_of,
    named,
    opened,
    opened_values,
    own_records,
    sealed,
    sealed_values,
    surely,
)
from everthread.codec.values import lower
from everthread.errors import ConflictError, InvalidValueError, ThreadNotFoundError, VersionNotFoundError
from everthread.messages.shapes import ADK, GOOGLE
from everthread.messages.view import Shown, view
from everthread.threads.aio.store import AsyncThreadStore
from everthread.threads.aio.thread import AnyVersion, AsyncThread
from everthread.values import Erased

with framework("adk"):
    from google.adk.errors import already_exists_error, session_not_found_error
    from google.adk.errors._stale_session_error import StaleSessionError
    from google.adk.events.event import Event
    from google.adk.sessions.base_session_service import (
        BaseSessionService,
        GetSessionConfig,
        ListSessionsResponse,
    )
    from google.adk.sessions.session import Session
    from pydantic_core import PydanticSerializationError, to_jsonable_python


__all__ = ["EverthreadSessionService", "register"]

# ``app:`` and ``user:`` state: shared by sessions, in threads of their own, yet never apart from events.
#
# A session's thread says in its log ``scopes`` what each event changes in them, and what stood there
# before. That is committed with the event, and only then done, under a commit key of its own: after a crash
# in between the next reader does it, and nobody does it twice. A rewind undoes it by the same log.


APP: Final = "app:"
USER: Final = "user:"
TEMP: Final = "temp:"
#: Where documents keep state, and the log that says what events change in scopes.
STATE: Final = "state"
LOG: Final = "scopes"

#: Scope → key → new value.
Deltas = dict[str, dict[str, Any]]


def divided(state: Mapping[str, Any]) -> tuple[dict[str, Any], Deltas]:
    """The session's own part of a state, and the parts of the scopes. What is temporary is in neither."""
    own: dict[str, Any] = {}
    scoped: Deltas = {}
    for key, value in state.items():
        if key.startswith(APP):
            scoped.setdefault(APP, {})[key.removeprefix(APP)] = value
        elif key.startswith(USER):
            scoped.setdefault(USER, {})[key.removeprefix(USER)] = value
        elif not key.startswith(TEMP):
            own[key] = value
    return own, scoped


class Scopes:
    """The shared state that one user of one app sees. With a ``subject`` the user's is sealed, and so is a
    session's own."""

    def __init__(
        self, store: AsyncThreadStore, app_name: str, user_id: str, subject: str | None = None
    ) -> None:
        self._store = store
        self.subject = subject
        self._names = {APP: joined("adk", "app", app_name), USER: joined("adk", "user", app_name, user_id)}

    async def _thread(self, scope: str) -> AsyncThread:
        return await self._store.thread(self._names[scope])

    async def _read(self, scope: str) -> dict[str, Any]:
        state: dict[str, Any] = (await self._thread(scope)).state.plain().get(STATE, {})
        return state

    async def read(self, scope: str) -> dict[str, Any]:
        """The state of a scope, keys without its prefix."""
        return self._shown(await self._read(scope))

    async def merged(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """A session's state as an agent sees it."""
        merged = self._shown(own)
        for scope in (APP, USER):
            merged |= {scope + key: value for key, value in (await self.read(scope)).items()}
        return merged

    def _shown(self, state: Mapping[str, Any]) -> dict[str, Any]:
        # Without a subject whoever put a personal value there gets it back as one.
        return dict(state) if self.subject is None else opened_values(state)

    def divided(self, state: Mapping[str, Any]) -> tuple[dict[str, Any], Deltas]:
        """As :func:`divided`, and sealed as it is kept. What belongs to the app is nobody's."""
        own, scoped = divided(state)
        if USER in scoped:
            scoped[USER] = sealed_values(self.subject, scoped[USER])
        return sealed_values(self.subject, own), scoped

    async def entry(self, event_id: str, scoped: Deltas) -> dict[str, Any]:
        """What the log says about an event: for each key what it was, if it was, and what it becomes."""
        changes = []
        for scope, delta in scoped.items():
            before = await self._read(scope)
            for key, value in delta.items():
                old = {"old": before[key]} if key in before else {}
                changes.append({"scope": scope, "key": key, "new": value, **old})
        return {"id": event_id, "token": uuid4().hex, "changes": changes}

    async def settle(self, entry: Mapping[str, Any]) -> None:
        """Do what an entry says, once, whoever else does it too: forks of the session hold it as well."""
        for scope in (APP, USER):
            delta = {
                each["key"]: each["new"]
                for each in entry["changes"]
                if each["scope"] == scope and not isinstance(each["new"], Erased)
            }
            while delta:
                thread = await self._thread(scope)
                thread.state.setdefault(STATE, {}).update(delta)
                try:
                    await thread.commit(key=entry["token"])
                    break
                except ConflictError:
                    # Another session was first; its keys stay, unless they are these.
                    continue

    async def go_back(
        self, undone: Iterable[Mapping[str, Any]], redone: Iterable[Mapping[str, Any]]
    ) -> list[str]:
        """Take back entries, the last first, and do others; the keys that somebody else has changed since,
        and that are left as they are."""
        steps = [
            (each["scope"], each["key"], ("new" in each, each.get("new")), ("old" in each, each.get("old")))
            for entry in reversed(list(undone))
            for each in reversed(entry["changes"])
        ]
        steps += [
            (each["scope"], each["key"], ("old" in each, each.get("old")), ("new" in each, each.get("new")))
            for entry in redone
            for each in entry["changes"]
        ]
        left: list[str] = []
        for scope in (APP, USER):
            mine = [(key, now, then) for where, key, now, then in steps if where == scope]
            if mine:
                left += [scope + key for key in await self._replace(scope, mine)]
        return left

    async def _replace(self, scope: str, steps: list[tuple[str, Any, Any]]) -> list[str]:
        left: list[str] = []

        def replace(draft: Any) -> None:
            left.clear()
            state = draft.state.setdefault(STATE, {})
            plain = state.plain()
            for key, now, then in steps:
                if (key in plain, plain.get(key)) != now or key in left:
                    if (key in plain, plain.get(key)) != then and key not in left:
                        left.append(key)
                    continue
                plain.pop(key, None)
                if then[0] and not isinstance(then[1], Erased):
                    plain[key] = then[1]
            for key in {key for key, _, _ in steps}:
                if key in plain:
                    state[key] = plain[key]
                else:
                    state.pop(key, None)

        await (await self._thread(scope)).update(replace)
        return left


#: Where a session's document keeps what belongs to this adapter.
PART = "adk"
SCHEME = "everthread"
#: Of so many sessions it is remembered what is done.
_SETTLED_MAX = 10_000

#: Whose data a session is: a name, or a function of app and user: ``lambda app_name, user_id: user_id``.
Subject = str | Callable[[str, str], "str | None"] | None


class Done:
    """What a call answers with that has done its work and may be awaited nevertheless."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class EverthreadSessionService(BaseSessionService):
    """Sessions on a store of either colour, a URL, or the default place.

    Every event is one durable version with the state that it leaves. Appending to a session that somebody
    else has written to since it was read raises the ADK's ``StaleSessionError`` and writes nothing.

    With a ``subject`` events, the session's state and ``user:`` state are sealed under that person's key,
    until ``store.erase(subject)``; what was erased is left out when a session is read. ``app:`` state is the
    app's, and never sealed.

    What other frameworks have written to a session's thread is shown as events of the user's side, whose
    content says who spoke; personal values in it only with a ``subject``. ``prefix`` begins the names of the
    threads, in place of app and user: a session is then whichever thread has that name.
    """

    def __init__(self, store: AnyStore = None, *, subject: Subject = None, prefix: str | None = None) -> None:
        self._in_use = StoreInUse(store)
        self._subject = subject
        self._prefix = prefix
        #: The last entry of each session that is known to be done, so that the store isn't asked again.
        self._settled: OrderedDict[str, str] = OrderedDict()

    def thread_name(self, *, app_name: str, user_id: str, session_id: str) -> str:
        """The thread of a session, for everything else that a thread can do."""
        return named(self._begin(app_name, user_id), session_id)

    def _begin(self, *keys: str) -> str:
        """How the names of all sessions of an app, or of one of its users, begin."""
        return below(PART, "session", *keys) if self._prefix is None else self._prefix

    async def _thread(self, app_name: str, user_id: str, session_id: str) -> AsyncThread:
        name = self.thread_name(app_name=app_name, user_id=user_id, session_id=session_id.strip())
        return await self._in_use.store.thread(name)

    def _scopes(self, app_name: str, user_id: str) -> Scopes:
        subject = self._subject(app_name, user_id) if callable(self._subject) else self._subject
        return Scopes(self._in_use.store, app_name, user_id, subject)

    # ── what the ADK asks for ────────────────────────────────────────────────────────────────

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """A new session. Raises the ADK's ``AlreadyExistsError`` if there is one of this id."""
        session_id = (session_id or "").strip() or str(uuid4())
        thread = await self._thread(app_name, user_id, session_id)
        taken = already_exists_error.AlreadyExistsError(f"Session with id {session_id} already exists.")
        if thread.head is not None:
            raise taken
        scopes = self._scopes(app_name, user_id)
        own, scoped = scopes.divided(_storable(state or {}))
        thread.state[PART] = {
            STATE: own,
            "updated": self._in_use.store.core.runtime.now_us() / 1e6,
            **self._keys(app_name, user_id),
        }
        entry = await scopes.entry("created", scoped)
        if scoped:
            thread.log(LOG).append(entry)
        try:
            await surely(thread.commit(metadata={"events": 0}))
        except ConflictError:
            raise taken from None
        await self._settle(thread, scopes, entry)
        return await self._session(thread, app_name, user_id, session_id, scopes)

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """The session with its events, or ``None``; with a ``config`` only its latest ones are read."""
        thread = await self._thread(app_name, user_id, session_id)
        if not _is_there(thread, app_name, user_id):
            return None
        scopes = self._scopes(app_name, user_id)
        await self._settle_last(thread, scopes)
        session = await self._session(thread, app_name, user_id, session_id.strip(), scopes)
        session.events = await _events(thread, config, reveal=scopes.subject is not None)
        return session

    def _keys(self, app_name: str, user_id: str) -> dict[str, str]:
        """Whose a session is, where the name of its thread doesn't say it."""
        return {} if self._prefix is None else {"app": app_name, "user": user_id}

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """The sessions of an app, or of one of its users, with state and without events, oldest first."""
        sessions = [session async for session in self._listed(app_name, user_id)]
        sessions.sort(key=lambda each: (each.last_update_time, each.user_id, each.id))
        return ListSessionsResponse(sessions=sessions)

    async def _listed(self, app_name: str, user_id: str | None) -> AsyncIterator[Session]:
        store = self._in_use.store
        prefix = self._begin(app_name, *([] if user_id is None else [user_id]))
        async for info in store.threads(prefix=prefix):
            thread = await store.thread(info.name)
            if thread.head is None:
                continue
            part = thread.state.plain().get(PART, {})
            if self._prefix is None:
                owner, session_id = keys_of(below(PART, "session", app_name), info.name)
            elif part.get("app") == app_name and user_id in (None, part["user"]):
                owner, session_id = part["user"], keys_of(prefix, info.name)[-1]
            else:
                # Nobody has made a session of it yet, or somebody else.
                continue
            yield await self._session(thread, app_name, owner, session_id, self._scopes(app_name, owner))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session for good; what isn't there is deleted already. Shared state stays."""
        thread = await self._thread(app_name, user_id, session_id)
        if _is_there(thread, app_name, user_id):
            try:
                await surely(thread.delete())
            except ThreadNotFoundError:
                # Somebody else was first.
                return

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The state that all sessions of a user share, keys without ``user:``."""
        return await self._scopes(app_name, user_id).read(USER)

    async def append_event(self, session: Session, event: Event) -> Event:
        """Add an event and the state that it leaves, durably, all or nothing. Partial events are not kept.

        Raises the ADK's ``StaleSessionError`` if the session was written to since it was read, and
        ``SessionNotFoundError`` if it is gone.
        """
        if event.partial:
            return event
        thread = await self._thread(session.app_name, session.user_id, session.id)
        if not _is_there(thread, session.app_name, session.user_id):
            raise session_not_found_error.SessionNotFoundError(f"Session {session.id} not found.")
        kept = event.model_copy(deep=True)
        _forget_temporary(kept)
        if not await self._delivered(thread, kept):
            _check_fresh(session, thread)
            await self._append(thread, session, kept)
            _mark(session, thread)
        elif any(each.id == event.id for each in session.events):
            return event
        # Only now: a session object whose event was refused is as it was.
        session.state.update(event.actions.state_delta or {})
        _forget_temporary(event)
        session.last_update_time = event.timestamp
        session.events.append(event)
        return event

    async def _delivered(self, thread: AsyncThread, event: Event) -> bool:
        """Whether this very event is there already: then its answer was lost, and it is not added again.
        One that was erased is not brought back either."""
        at = await thread.messages.find(event.id)
        if at is None:
            return False
        stored = (await thread.messages.read(at, at + 1))[0].get("message")
        return isinstance(stored, Erased) or opened(stored) == _dumped(event)

    async def _append(self, thread: AsyncThread, session: Session, event: Event) -> None:
        scopes = self._scopes(session.app_name, session.user_id)
        await self._settle_last(thread, scopes)
        own, scoped = scopes.divided(_storable(event.actions.state_delta or {}))
        part = thread.state.setdefault(PART, {})
        part.setdefault(STATE, {}).update(own)
        part["updated"] = event.timestamp
        part.update(self._keys(session.app_name, session.user_id))
        entry = await scopes.entry(event.id, scoped)
        if scoped:
            thread.log(LOG).append(entry)
        message = sealed(scopes.subject, _dumped(event))
        thread.messages.append({"id": event.id, "shape": ADK, "message": message})
        try:
            await surely(thread.commit(metadata={"events": len(thread.messages)}))
        except ConflictError as error:
            raise StaleSessionError(f"{_STALE} ({error})") from error
        await self._settle(thread, scopes, entry)

    # ── shared state ─────────────────────────────────────────────────────────────────────────

    async def _settle(self, thread: AsyncThread, scopes: Scopes, entry: dict[str, Any]) -> None:
        if entry["changes"] and self._settled.get(thread.name) != entry["token"]:
            await surely(scopes.settle(entry))
            self._settled[thread.name] = entry["token"]
            self._settled.move_to_end(thread.name)
            if len(self._settled) > _SETTLED_MAX:
                self._settled.popitem(last=False)

    async def _settle_last(self, thread: AsyncThread, scopes: Scopes) -> None:
        """Do what the last event changes in shared state, in case whoever wrote it died before doing so."""
        if last := await thread.log(LOG).read(-1):
            await self._settle(thread, scopes, last[0])

    # ── what a thread has beyond it ──────────────────────────────────────────────────────────

    async def fork(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        new_session_id: str,
        at: AnyVersion | None = None,
    ) -> Session:
        """A session of its own that begins as this one was at a version (by default: now). O(1).

        Shared state is shared with it, too. Raises :class:`ThreadExistsError` if there is one of this id.
        """
        thread = await self._existing(app_name, user_id, session_id)
        other = self.thread_name(app_name=app_name, user_id=user_id, session_id=new_session_id.strip())
        await self._settle_last(thread, self._scopes(app_name, user_id))
        await thread.fork(other, at=at)
        forked = await self.get_session(app_name=app_name, user_id=user_id, session_id=new_session_id)
        assert forked is not None
        return forked

    async def rewind(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        to: AnyVersion | None = None,
        before_invocation_id: str | None = None,
    ) -> Session:
        """Go back to a version, or to before an invocation: events, the session's state, and what its events
        changed in ``app:`` and ``user:`` state. Itself a version, so that it can be undone.

        A shared key that another session has changed since is left as it is.
        """
        thread = await self._existing(app_name, user_id, session_id)
        scopes = self._scopes(app_name, user_id)
        await self._settle_last(thread, scopes)
        if (to is None) == (before_invocation_id is None):
            raise InvalidValueError("rewind() takes a version or before_invocation_id=…", path="to")
        past = await thread.at(to if to is not None else await _before(thread, before_invocation_id or ""))
        now, then = await thread.log(LOG).read(), await past.log(LOG).read()
        same = 0
        while same < min(len(now), len(then)) and now[same] == then[same]:
            same += 1
        # First: repeated after a crash in between, it finds nothing left to do.
        await surely(scopes.go_back(now[same:], then[same:]))
        await surely(thread.rewind(past.version))
        session = await self.get_session(app_name=app_name, user_id=user_id, session_id=session_id)
        assert session is not None
        return session

    async def _existing(self, app_name: str, user_id: str, session_id: str) -> AsyncThread:
        thread = await self._thread(app_name, user_id, session_id)
        if not _is_there(thread, app_name, user_id):
            raise session_not_found_error.SessionNotFoundError(f"Session {session_id} not found.")
        return thread

    def close(self) -> Done:
        """Close the store, if it was opened here. Closed when this returns; it may be awaited as well."""
        self._in_use.close()
        return Done()

    # ── sessions ─────────────────────────────────────────────────────────────────────────────

    async def _session(
        self, thread: AsyncThread, app_name: str, user_id: str, session_id: str, scopes: Scopes
    ) -> Session:
        part = thread.state.plain().get(PART, {})
        session = Session(
            id=session_id,
            app_name=app_name,
            user_id=user_id,
            state=await scopes.merged(part.get(STATE, {})),
            last_update_time=part.get("updated", 0.0),
        )
        _mark(session, thread)
        return session


_STALE = "the session was written to after it was read; get it again, then append"


def _mark(session: Session, thread: AsyncThread) -> None:
    """Remember which version a session object shows."""
    if "_storage_update_marker" in Session.__private_attributes__ and thread.head is not None:
        session._storage_update_marker = thread.head.id


def _check_fresh(session: Session, thread: AsyncThread) -> None:
    marker = getattr(session, "_storage_update_marker", None)
    if marker is None:
        # Made by hand, or by a release without markers: then the time is all there is.
        stale = thread.state.plain().get(PART, {}).get("updated", 0.0) > session.last_update_time
    else:
        stale = thread.head is None or thread.head.id != marker
    if stale:
        raise StaleSessionError(_STALE)


def _dumped(event: Event) -> dict[str, Any]:
    data: dict[str, Any] = event.model_dump(mode="json", exclude_none=True)
    return data


def _forget_temporary(event: Event) -> None:
    """``temp:`` state lives as long as an invocation does: in the session object, not in the event."""
    delta = event.actions.state_delta or {}
    event.actions.state_delta = {key: value for key, value in delta.items() if not key.startswith(TEMP)}


def _is_there(thread: AsyncThread, app_name: str, user_id: str) -> bool:
    """Whether this app and user have such a session; one that others began is whoever's takes it first."""
    if thread.head is None:
        return False
    part = thread.state.plain().get(PART, {})
    return bool(part.get("app", app_name) == app_name and part.get("user", user_id) == user_id)


async def _events(thread: AsyncThread, config: GetSessionConfig | None, *, reveal: bool) -> list[Event]:
    count = None if config is None else config.num_recent_events
    log = thread.messages
    items = await log.read(0 if count is None else max(0, len(log) - count)) if count != 0 else []
    if len(items) < len(log) and any(_own(item) is None for item in items):
        # What others wrote may be several events, or none, and the calls that it answers stand further back.
        items = await log.read()
    assert thread.head is not None
    events = _built(view(items, GOOGLE, _own, reveal=reveal), thread.head.at_us / 1e6)
    events = events if count is None else events[max(0, len(events) - count) :]
    if config is not None and config.after_timestamp is not None:
        # All after the last one that is too old.
        old = [at for at, event in enumerate(events) if event.timestamp < config.after_timestamp]
        events = events[old[-1] + 1 :] if old else events
    return events


_own = own_records(ADK)


def _built(shown: list[Shown], now: float) -> list[Event]:
    """The events that items are. What others wrote has no time: it was there when the next event came."""
    events: list[Event] = []
    time = now
    for each in reversed(shown):
        if each.own:
            made = [Event.model_validate(record) for record in each.messages]
            time = made[0].timestamp if made else time
        else:
            made = [
                # To the ADK any other author but the agent itself speaks to it; the content's role counts.
                Event(
                    id=_event_id(each.item, at, len(each.messages)),
                    author="user",
                    timestamp=time,
                    content=content,
                )
                for at, content in enumerate(each.messages, 1)
            ]
        events[:0] = made
    return events


def _event_id(item: Any, number: int, count: int) -> str:
    name = str(item.get("id", "")) if isinstance(item, dict) else ""
    return name if number == count else f"{name}#part-{number}"


async def _before(thread: AsyncThread, invocation_id: str) -> AnyVersion:
    """The newest version in which the events before an invocation were all there are."""
    items = await thread.messages.read()
    found = [
        at
        for at, item in enumerate(items)
        if any(record.get("invocation_id") == invocation_id for record in _own(item) or [])
    ]
    if not found:
        raise InvalidValueError(f"no event of the session is of the invocation {invocation_id!r}")
    async for version in thread.history(None):
        if version.metadata.get("events") == found[0]:
            last = await (await thread.at(version)).messages.read(-1)
            if not found[0] or last == items[found[0] - 1 : found[0]]:
                return version
    raise VersionNotFoundError(f"the version before {invocation_id!r} was pruned, or was never one by itself")


def _storable(state: dict[str, Any]) -> dict[str, Any]:
    """State as it can be kept: as it is, or as JSON where a value is of a type that only pydantic knows."""
    made = {}
    for key, value in state.items():
        try:
            lower(value, root="state")
        except InvalidValueError as error:
            try:
                value = to_jsonable_python(value)
            except PydanticSerializationError:
                raise InvalidValueError(f"state[{key!r}] can't be stored: {error}", path=key) from error
        made[key] = value
    return made


def register(scheme: str = SCHEME) -> None:
    """Let the ADK's command line open stores: ``--session_service_uri everthread+sqlite:///agent.db``.

    Called in ``services.py`` beside the agents. The scheme alone, ``everthread://``, is the default place.
    """
    from google.adk.cli.service_registry import get_service_registry

    def open_service(uri: str, **options: Any) -> EverthreadSessionService:
        url = uri.removeprefix(f"{scheme}+")
        return EverthreadSessionService(None if url == uri else url)

    registry = get_service_registry()
    registry.register_session_service(scheme, open_service)
    for kind in ("sqlite", "file", "postgresql", "valkey", "redis"):
        registry.register_session_service(f"{scheme}+{kind}", open_service)
