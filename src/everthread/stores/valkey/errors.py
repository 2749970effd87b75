"""From what a server or the network says to the errors that callers know."""

from __future__ import annotations

from redis.exceptions import RedisError

from everthread.errors import (
    AccessError,
    EverthreadError,
    InvalidValueError,
    StateCorruptedError,
    StorageWriteError,
    StoreBusyError,
    StoreUnavailableError,
    UnsupportedError,
)

#: Passes by itself: worth another try.
PASSING = frozenset({"LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "BUSY", "UNBLOCKED"})

_ACCESS = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})
_WRITING = {
    "OOM": "the server has no memory left for it (maxmemory); make room, or raise the limit",
    "MISCONF": "the server can't save to its disk and refuses to write; look at its log",
    "NOREPLICAS": "too few replicas are there for the server to write; look at them",
}
_PASSING = {
    "READONLY": "this server is a read-only replica; let the URL name the primary",
    "LOADING": "the server is still loading its data; try again later",
    "BUSY": "the server is busy with a script; try again later",
    "CLUSTERDOWN": "the cluster is down: not every slot is served; look at its nodes",
    "TRYAGAIN": "the cluster is moving slots; try again",
    "MASTERDOWN": "the replica has lost its primary; try again later",
}


class Lost(Exception):  # noqa: N818 - a signal inside this driver
    """The connection went. ``sent``: whether the server may have got the commands;
    ``nobody_there``: no server listens at that address."""

    def __init__(self, why: str, sent: bool, *, nobody_there: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.sent = sent
        self.nobody_there = nobody_there


def code_of(error: RedisError) -> str:
    """The first word of what the server answered, such as MOVED."""
    return error.status_code or str(error).partition(" ")[0]


def text_of(error: BaseException) -> str:
    """What went wrong, in the words of the server or of the network."""
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    text = str(error) or type(error).__name__
    code = getattr(error, "status_code", None)
    return f"{code} {text}" if code else text


def is_nobody_there(error: BaseException) -> bool:
    """Whether making a connection failed since no server listens there, or there is no such host."""
    cause = error.__context__
    return isinstance(cause, OSError) and not isinstance(cause, (TimeoutError, ConnectionResetError))


def translated(error: RedisError, url: str) -> EverthreadError:
    """The error for what a server answered."""
    code, text = code_of(error), text_of(error)
    if code in _ACCESS or text.startswith("ERR invalid password"):
        return AccessError(f"{url} refuses: {text}; check user, password and what the user may do")
    if "DB index is out of range" in text or "invalid DB index" in text:
        return InvalidValueError(
            f"the server has no database of the number at the end of {url}: there are as many as its setting "
            "`databases` says (16 unless it was changed), from 0 on. Name one of these, or keep stores "
            "apart in one database with ?prefix=",
            path="url",
        )
    if code in _WRITING:
        return StorageWriteError(f"{url}: {_WRITING[code]} ({text})")
    if code == "BUSY":
        return StoreBusyError(f"{url}: {_PASSING[code]}")
    if code in _PASSING:
        return StoreUnavailableError(f"{url}: {_PASSING[code]}")
    if code in ("MOVED", "ASK", "CROSSSLOT"):
        return UnsupportedError(f"{url} belongs to a cluster; add ?cluster=true to the URL ({text})")
    if code in ("DAMAGED", "WRONGTYPE"):
        return StateCorruptedError(f"{url}: what is stored isn't what was written ({text})", where=url)
    return StoreUnavailableError(f"{url} can't do that: {text}")


def unavailable(why: str, url: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"{url} can't be reached ({why}): is the server running, and do host and port fit?"
    )


def in_doubt(why: str, url: str) -> StorageWriteError:
    return StorageWriteError(
        f"the connection to {url} was lost ({why}) before the answer came: it is written or not. Do it again "
        "from the same object, which recognises what has landed"
    )


def busy(url: str, connections: int, waited_s: float) -> StoreBusyError:
    return StoreBusyError(
        f"all {connections} connections to {url} were in use for {waited_s:g} s; nothing was sent. Let fewer "
        "work at once, or add ?connections= to the URL"
    )
