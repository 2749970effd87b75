"""Registers: small values replaced by compare-and-set (leases, heartbeats, positions).

A value starts with an owner token (8 bytes, kept until another owner takes the register over) and a nonce
(8 bytes, new with every write). A write guards both. A commit that relies on a lease guards the token alone,
which a heartbeat doesn't change.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from everthread.errors import StateCorruptedError
from everthread.records.checked import CheckedStore
from everthread.records.keys import decode_name, encode_name, end_of_prefix, only, start_after
from everthread.records.tables import REGISTER
from everthread.stores.interface import Batch, Guard, Key, Refused

_TOKEN = 8
_FIXED = 16

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(tuple[int, int, bytes]).decode


class Register(msgspec.Struct, frozen=True):
    """A register as it was read. ``revision`` grows with every write and is never used again."""

    value: bytes
    revision: int
    written_us: int
    token: bytes
    nonce: bytes

    @property
    def guard(self) -> bytes:
        return self.token + self.nonce


class StaleRegister(Exception):  # noqa: N818 - a signal between layers, callers see a typed error
    """The register isn't the one that the write expected; ``actual`` is ``None`` if it is absent."""

    def __init__(self, actual: Register | None) -> None:
        super().__init__("stale")
        self.actual = actual


def register_key(namespace: int, name: str) -> Key:
    return REGISTER.number, namespace, encode_name(name)


def lease_guard(namespace: int, name: str, token: bytes) -> Guard:
    """Return the guard that a register still has this owner, for writes that rely on a lease."""
    return Guard(register_key(namespace, name), token)


def encode_register(value: bytes, revision: int, written_us: int, token_and_nonce: bytes) -> bytes:
    return token_and_nonce + _encode((revision, written_us, value))


def decode_register(content: bytes) -> Register:
    try:
        revision, written_us, value = _decode(content[_FIXED:])
    except (msgspec.MsgspecError, ValueError) as error:
        raise StateCorruptedError("a register can't be decoded", where="register") from error
    return Register(value, revision, written_us, content[:_TOKEN], content[_TOKEN:_FIXED])


def _read(content: bytes | None) -> Register | None:
    return None if content is None else decode_register(content)


class Registers:
    """Reads and writes registers."""

    def __init__(self, store: CheckedStore, random_bytes: Callable[[int], bytes]) -> None:
        self._store = store
        self._random_bytes = random_bytes

    async def get(self, namespace: int, name: str) -> Register | None:
        (content,) = await self._store.get(register_key(namespace, name))
        return _read(content)

    async def page(
        self, namespace: int, prefix: str, after: str | None, limit: int
    ) -> list[tuple[str, Register]]:
        """Return up to ``limit`` registers by name, from the first after ``after`` that has the prefix."""
        start, stop = start_after(prefix, after), end_of_prefix(encode_name(prefix))
        found = await self._store.page(REGISTER.number, namespace, start, stop, limit)
        return [(decode_name(at), decode_register(content)) for at, content in found]

    async def compare_and_set(
        self,
        namespace: int,
        name: str,
        expected: int,
        value: bytes | None,
        now_us: int,
        *,
        take_over: bool = False,
        durable: bool = True,
    ) -> Register | None:
        """Replace the value of a register at revision ``expected`` (0: absent), or delete it (``None``).

        Returns what is stored now. With ``take_over`` it has a new owner token. Raises
        :class:`StaleRegister`, and changes nothing, if the register is at another revision. What isn't
        ``durable`` may be lost in a power cut.
        """
        key = register_key(namespace, name)
        content, clock_us = await self._store.get_at(key)
        known = _read(content)
        if (known.revision if known else 0) != expected:
            raise StaleRegister(known)
        guard = Guard(key, None if known is None else known.guard)
        new: Register | None = None
        if value is None:
            batch = Batch([guard], deletes=[only(REGISTER, namespace, encode_name(name))], durable=durable)
        else:
            # The first one is the time in nanoseconds: none is used again after a deletion.
            revision = clock_us * 1_000 if known is None else expected + 1
            token = self._random_bytes(_TOKEN) if known is None or take_over else known.token
            new = Register(value, revision, now_us, token, self._random_bytes(_FIXED - _TOKEN))
            content = encode_register(value, revision, now_us, new.guard)
            batch = Batch([guard], [(key, content)], durable=durable)
        outcome = await self._store.write_one(batch)
        if isinstance(outcome, Refused):
            raise StaleRegister(_read(outcome.value))
        return new
