"""The lines that hold keys: as they are written anew, and for keys that go from one keyring to another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from everthread.codec.seal import NONCE_BYTES, RandomBytes
from everthread.keyring.format import (
    DestroyedRecord,
    HoldRecord,
    KeyRecord,
    TokensRecord,
    UntilRecord,
    Wrapping,
    key_purpose,
    tokens_purpose,
)
from everthread.keyring.medium import State
from everthread.keyring.parcel import KeyInParcel, KeyParcel


def lent(state: State, key_ids: Collection[bytes]) -> list[KeyParcel]:
    """Keys in clear, those that came from another keyring apart: their tokens are of that one."""
    table = state.table
    by_origin: dict[bytes, list[KeyInParcel]] = {}
    for key_id in dict.fromkeys(key_ids):
        if key_id in table.entries:
            key = (key_id, table.entries[key_id][0], state.key(key_id).key)
            by_origin.setdefault(table.came_from.get(key_id, table.keyring_id), []).append(key)
    return [
        KeyParcel(
            origin,
            state.token_key if origin == table.keyring_id else state.other_token_key(origin),
            keys,
            {key[0]: table.until[key[0]] for key in keys if key[0] in table.until},
        )
        for origin, keys in by_origin.items()
    ]


def taken_in(
    state: State, parcels: Sequence[KeyParcel], random_bytes: RandomBytes
) -> list[KeyRecord | TokensRecord | UntilRecord]:
    """The lines by which keys are added: none that is here or was destroyed here."""
    table, wrapping = state.table, state.wrapping
    records: list[KeyRecord | TokensRecord | UntilRecord] = []
    known = set(table.entries) | table.destroyed
    origins = {table.keyring_id, *table.other_tokens}
    for parcel in parcels:
        origin = parcel.keyring_id
        new = [key for key in parcel.keys if key[0] not in known]
        if new and origin not in origins:
            records.append(tokens_line(wrapping, origin, parcel.token_key, random_bytes))
            origins.add(origin)
        # Put back from an archive of its own, a key is one of its own.
        by = b"" if origin == table.keyring_id else origin
        for key_id, token, key in new:
            if key_id in parcel.until:
                records.append(UntilRecord(key_id.hex(), parcel.until[key_id]))
            records.append(key_line(wrapping, key_id, key, token, random_bytes, by))
            known.add(key_id)
    return records


def survivors(
    state: State, destroyed: Collection[bytes], wrapping: Wrapping, random_bytes: RandomBytes
) -> Iterator[DestroyedRecord | KeyRecord | TokensRecord | UntilRecord | HoldRecord]:
    """All lines but the header, without some keys, under another master key."""
    table, opening = state.table, state.wrapping
    gone = table.destroyed | set(destroyed)
    for key_id in sorted(gone):
        yield DestroyedRecord(key_id.hex())
    for origin in table.other_tokens:
        yield tokens_line(wrapping, origin, state.other_token_key(origin), random_bytes)
    for key_id, (token, _) in table.entries.items():
        if key_id not in gone:
            key, by = state.plain_key(opening, key_id), table.came_from.get(key_id, b"")
            yield key_line(wrapping, key_id, key, token, random_bytes, by)
    for key_id, until_us in table.until.items():
        if key_id not in gone and key_id in table.entries:
            yield UntilRecord(key_id.hex(), until_us)
    for key_id, holds in table.holds.items():
        if key_id not in gone:
            yield from (HoldRecord(key_id.hex(), by.hex()) for by in sorted(holds))


def key_line(
    wrapping: Wrapping, key_id: bytes, key: bytes, token: bytes, random_bytes: RandomBytes, by: bytes = b""
) -> KeyRecord:
    """A key, wrapped, with the token of its subject; ``by`` is the keyring whose token that is."""
    wrapped = wrapping.wrap(key, random_bytes(NONCE_BYTES), key_purpose(key_id, token))
    return KeyRecord(id=key_id.hex(), token=token.hex(), key=wrapped.hex(), by=by.hex())


def tokens_line(
    wrapping: Wrapping, keyring_id: bytes, token_key: bytes, random_bytes: RandomBytes
) -> TokensRecord:
    """Under which key another keyring makes its tokens."""
    wrapped = wrapping.wrap(token_key, random_bytes(NONCE_BYTES), tokens_purpose(keyring_id))
    return TokensRecord(id=keyring_id.hex(), key=wrapped.hex())
