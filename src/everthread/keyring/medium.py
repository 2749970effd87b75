"""Where the lines of a keyring are kept, and what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from everthread.codec.seal import KEY_BYTES, NONCE_BYTES, RandomBytes, SubjectKey
from everthread.errors import KeyringError
from everthread.keyring.format import (
    FORMAT,
    SIGNING_KEY_PURPOSE,
    TOKEN_KEY_PURPOSE,
    Header,
    KeyTable,
    MasterSource,
    Wrapping,
    key_purpose,
    subject_token,
    tokens_purpose,
)
from everthread.stores.contract import Residues

#: What tells the time, in microseconds since 1970; asked only where keys have a time.
Clock = Callable[[], int]


def dawn() -> int:
    """A time at which no time is over."""
    return 0


class Medium(Protocol):
    """Where the lines are. Raises :class:`KeyringError`, or :class:`OSError`, which becomes one.

    ``look`` is asked before every use and must be quick. Who reads or writes more does so within ``held``.
    """

    where: str

    def look(self) -> tuple[object, int] | None:
        """Which lines there are, another value after each :meth:`replace`, and how many bytes they have;
        ``None`` if there never were any."""

    def grown(self, size: int) -> bool:
        """Whether anybody has added lines to those that were read last, or is about to replace them. What is
        done to them by hand needn't show."""

    def stays(self, generation: object, size: int) -> bool:
        """Whether :meth:`look` would say this of what was read last, as far as that can be told quicker:
        lines that were replaced show, a folder that was moved needn't."""

    def held(self, *, exclusive: bool = False) -> AbstractContextManager[None]:
        """Nobody else writes meanwhile; ``exclusive``: nor reads. Within itself it does nothing."""

    def read(self, offset: int) -> bytes:
        """The lines from ``offset`` on."""

    def append(self, line: bytes, end: int) -> None:
        """Put a line at ``end``, durably. What stood there was never promised to anybody."""

    def replace(self, lines: Sequence[bytes]) -> Callable[[], None]:
        """Put other lines in the place of all, durably and at once. Returns what wipes out the old ones."""

    def sync(self) -> None:
        """Make durable what was read: whoever wrote it may have died in between."""

    def create(self) -> None:
        """Make the place for lines that don't exist yet."""

    def residues(self, needles: Sequence[bytes]) -> Residues:
        """Look for byte strings in everything that is kept there."""

    def forget(self, *, forked: bool = False) -> None:
        """Let go of what is open; ``forked``: it belongs to the parent of this process."""


class State:
    """The lines as far as they have been read, and what has been decrypted of them."""

    def __init__(self, generation: object, where: str) -> None:
        self.generation = generation
        self.table = KeyTable(where)
        self.seen = 0
        self.durable_end = 0
        self.master = b""
        self.master_is_next = False
        self.token_key = b""
        self.opened: dict[bytes, SubjectKey] = {}
        #: The keys that are used for sealing just now, by subject; others may come with new lines.
        self.sealing: dict[str, SubjectKey] = {}
        self.tokens: dict[str, bytes] = {}
        self.other_keys: dict[bytes, bytes] = {}

    def token(self, subject: str) -> bytes:
        token = self.tokens.get(subject)
        if token is None:
            token = self.tokens[subject] = subject_token(self.token_key, subject)
        return token

    def live_ids(self, subject: str) -> list[bytes]:
        """Those that came from other keyrings first: what is sealed from now on is under one of its own."""
        own = self.table.by_token.get(self.token(subject), [])
        if not self.table.other_tokens:
            return own
        tokens = (subject_token(self.other_token_key(by), subject) for by in self.table.other_tokens)
        return [key_id for token in tokens for key_id in self.table.by_token.get(token, [])] + own

    def other_token_key(self, keyring_id: bytes) -> bytes:
        """The token key of a keyring from which keys were taken in."""
        known = self.other_keys.get(keyring_id)
        if known is None:
            wrapped = self.table.other_tokens[keyring_id]
            known = self.wrapping.unwrap(wrapped, tokens_purpose(keyring_id))
            if known is None:
                raise KeyringError(f"{self.table.where}: the token key {keyring_id.hex()} is damaged")
            self.other_keys[keyring_id] = known
        return known

    @property
    def wrapping(self) -> Wrapping:
        return Wrapping(self.master, self.table.keyring_id)

    def key(self, key_id: bytes) -> SubjectKey:
        key = self.opened.get(key_id)
        if key is None:
            key = self.opened[key_id] = SubjectKey(key_id, self.plain_key(self.wrapping, key_id))
        return key

    def sign(self, message: bytes) -> tuple[bytes, bytes]:
        """The public key of the keyring, and its signature."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        plain = self.wrapping.unwrap(bytes.fromhex(self.table.header.signing_key), SIGNING_KEY_PURPOSE)
        if plain is None:
            raise KeyringError(f"{self.table.where}: the signing key is damaged")
        private = Ed25519PrivateKey.from_private_bytes(plain)
        return private.public_key().public_bytes_raw(), private.sign(message)

    def plain_key(self, wrapping: Wrapping, key_id: bytes) -> bytes:
        token, wrapped = self.table.entries[key_id]
        plain = wrapping.unwrap(wrapped, key_purpose(key_id, token))
        if plain is None:
            raise KeyringError(f"{self.table.where}: the key {key_id.hex()} is damaged")
        return plain


def next_header(
    state: State | None,
    wrapping: Wrapping,
    source: MasterSource,
    wrapped_master: str,
    random: RandomBytes,
    at_least: int = FORMAT,
) -> Header:
    """The first of the lines that are written next: what stays for the keyring's whole life, wrapped anew. In
    the format that the lines have, or a later one."""
    if state is None:
        epoch, token_key, signing_key = 0, random(KEY_BYTES), random(KEY_BYTES)
    else:
        epoch, token_key = state.table.header.epoch, state.token_key
        known = bytes.fromhex(state.table.header.signing_key)
        found = state.wrapping.unwrap(known, SIGNING_KEY_PURPOSE) if known else random(KEY_BYTES)
        if found is None:
            raise KeyringError(f"{state.table.where}: the signing key is damaged. Nothing was changed")
        signing_key = found
    return Header(
        format=at_least if state is None else max(at_least, state.table.header.format),
        id=wrapping.keyring_id.hex(),
        # The random part tells a keyring from an older copy of it that went on by itself.
        epoch=epoch + 1 + int.from_bytes(random(4), "big"),
        master=source,
        token_key=wrapping.wrap(token_key, random(NONCE_BYTES), TOKEN_KEY_PURPOSE).hex(),
        wrapped_master=wrapped_master,
        signing_key=wrapping.wrap(signing_key, random(NONCE_BYTES), SIGNING_KEY_PURPOSE).hex(),
    )
