"""``app:`` and ``user:`` state: shared by sessions, in threads of their own, yet never apart from events.

A session's thread says in its log ``scopes`` what each event changes in them, and what stood there before.
That is committed with the event, and only then done, under a commit key of its own: after a crash in
between the next reader does it, and nobody does it twice. A rewind undoes it by the same log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import uuid4

from everthread.adapters.naming import joined
from everthread.adapters.subjects import opened_values, sealed_values
from everthread.errors import ConflictError
from everthread.threads.aio.store import AsyncThreadStore
from everthread.threads.aio.thread import AsyncThread
from everthread.values import Erased

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
