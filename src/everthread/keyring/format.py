"""The records of a keyring, and keys wrapped under a master key. Pure: a medium keeps the bytes.

Specified in ``docs/internals/sealing.md``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import msgspec

from everthread.codec.seal import ID_BYTES, KEY_BYTES, NONCE_BYTES, TAG_BYTES, RandomBytes, SubjectKey
from everthread.errors import KeyringError, SchemaVersionError
from everthread.keyring.parcel import TOKEN_BYTES, KeyInParcel, KeyParcel

FORMAT = 1
_TIME_MAX = 1 << 63
WRAPPED_BYTES = NONCE_BYTES + KEY_BYTES + TAG_BYTES

_RECORD_START = b'{"sum":"'
_SUM_DIGITS = 16
_SUM_END = len(_RECORD_START) + _SUM_DIGITS
_AD_LABEL = b"everthread keyring\x00"

MasterSource = Literal["file", "env", "hook"]


class Header(msgspec.Struct, tag_field="kind", tag="header", omit_defaults=True, forbid_unknown_fields=True):
    """The first record. Its id, token key and signing key stay the same for the keyring's whole life."""

    format: int
    id: str
    epoch: int
    master: MasterSource
    token_key: str
    signing_key: str
    wrapped_master: str = ""


class KeyRecord(msgspec.Struct, tag_field="kind", tag="key", omit_defaults=True, forbid_unknown_fields=True):
    """A live key, wrapped, with the token of its subject; ``by`` is the id of the keyring whose token that
    is, if not of this one."""

    id: str
    token: str
    key: str
    by: str = ""


class TokensRecord(msgspec.Struct, tag_field="kind", tag="tokens", forbid_unknown_fields=True):
    """Under which key another keyring, from which keys were taken in, makes its tokens; wrapped."""

    id: str
    key: str


class DestroyedRecord(msgspec.Struct, tag_field="kind", tag="destroyed", forbid_unknown_fields=True):
    """A key that is gone. Nothing links it to its subject any more."""

    id: str


class UntilRecord(msgspec.Struct, tag_field="kind", tag="until", forbid_unknown_fields=True):
    """Until when a key may be used, in microseconds since 1970; 0 for ever. The last one of a key counts."""

    id: str
    us: int


class HoldRecord(
    msgspec.Struct, tag_field="kind", tag="hold", omit_defaults=True, forbid_unknown_fields=True
):
    """That a key must not be destroyed: ``by`` tells holds on it apart. The last record of a hold
    counts."""

    id: str
    by: str
    on: bool = True


class StoreRecord(msgspec.Struct, tag_field="kind", tag="store", forbid_unknown_fields=True):
    """A store that has sealed something under keys of this keyring: where it is, without secrets."""

    id: str
    url: str


class _AnyHeader(msgspec.Struct):
    kind: str
    format: int = 0


Record = Header | KeyRecord | DestroyedRecord | TokensRecord | UntilRecord | HoldRecord | StoreRecord
_record_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class KeyTable:
    """What the records read so far say. ``end`` counts their bytes. Needs no master key."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.end = 0
        self.destroyed: set[bytes] = set()
        #: Key id to (token, wrapped key).
        self.entries: dict[bytes, tuple[bytes, bytes]] = {}
        self.by_token: dict[bytes, list[bytes]] = {}
        #: Keys that came from another keyring, with its id; and by that id its token key, wrapped.
        self.came_from: dict[bytes, bytes] = {}
        self.other_tokens: dict[bytes, bytes] = {}
        #: Until when keys may be used, in microseconds; 0 for ever. Most keys have no entry.
        self.until: dict[bytes, int] = {}
        #: The legal holds on keys.
        self.holds: dict[bytes, frozenset[bytes]] = {}
        #: The stores that use the keyring, by an id made of where they are.
        self.stores: dict[bytes, str] = {}
        self._header: Header | None = None
        self._count = 0
        self._newline_missing = False

    @property
    def header(self) -> Header:
        if self._header is None:
            raise damaged(self.where, "record 1 is damaged")
        return self._header

    @property
    def keyring_id(self) -> bytes:
        return bytes.fromhex(self.header.id)

    def read(self, data: bytes) -> None:
        """Take in ``data``, which begins at ``end``.

        A torn last record is left out, and ``end`` stays before it. Any other damage raises
        :class:`KeyringError` naming the record; a newer format raises :class:`SchemaVersionError`.
        """
        position = 0
        if self._newline_missing and data.startswith(b"\n"):
            position, self._newline_missing = 1, False
        while position < len(data):
            cut = data.find(b"\n", position)
            record = data[position:] if cut < 0 else data[position:cut]
            if self._newline_missing or not self._take(decode_record(record)):
                at_end = cut < 0 or cut == len(data) - 1
                # A crash leaves a prefix of a record, or zeros where the file grew before its data arrived.
                # Everything else is damage to a key that somebody may have been promised.
                if at_end and (b"\x00" in record or (cut < 0 and b"}" not in record)):
                    break
                raise damaged(self.where, f"record {self._count + 1} is damaged")
            self._count += 1
            self._newline_missing = cut < 0
            position = len(data) if cut < 0 else cut + 1
        self.end += position
        # Raises if not even the first record is whole: a keyring is never created without it.
        _ = self.header

    def encode_next(self, records: Sequence[Record]) -> bytes:
        """The bytes that append ``records`` at ``end``."""
        return (b"\n" if self._newline_missing else b"") + b"".join(map(encode_record, records))

    def _take(self, record: Record | None) -> bool:
        if record is None:
            return False
        key_id = unhex(record.id, ID_BYTES)
        if isinstance(record, UntilRecord):
            return self._take_time(key_id, record.us)
        if isinstance(record, HoldRecord):
            return self._take_hold(key_id, unhex(record.by, ID_BYTES), on=record.on)
        if isinstance(record, StoreRecord):
            return self._take_store(key_id, record.url)
        known = key_id in self.entries or key_id in self.destroyed or key_id in self.other_tokens
        if not key_id or known:
            return False
        if isinstance(record, Header):
            return self._take_header(record)
        if self._header is None:
            return False
        if isinstance(record, DestroyedRecord):
            self.destroyed.add(key_id)
            return True
        wrapped = unhex(record.key, WRAPPED_BYTES)
        if isinstance(record, TokensRecord):
            self.other_tokens[key_id] = wrapped
            return bool(wrapped)
        token = unhex(record.token, TOKEN_BYTES)
        if not token or not wrapped:
            return False
        if record.by:
            by = unhex(record.by, ID_BYTES)
            if by not in self.other_tokens:
                return False
            self.came_from[key_id] = by
        self.entries[key_id] = (token, wrapped)
        self.by_token.setdefault(token, []).append(key_id)
        return True

    def _take_header(self, header: Header) -> bool:
        wrapped_master = unhex(header.wrapped_master, len(header.wrapped_master) // 2)
        sound = (
            not self._count
            and header.format == FORMAT
            and (header.master == "hook") == bool(wrapped_master)
            and unhex(header.token_key, WRAPPED_BYTES)
            and unhex(header.signing_key, WRAPPED_BYTES)
        )
        if sound:
            self._header = header
        return bool(sound)

    def _take_time(self, key_id: bytes, until_us: int) -> bool:
        if self._header is None or not key_id or key_id in self.destroyed or not 0 <= until_us < _TIME_MAX:
            return False
        self.until[key_id] = until_us
        return True

    def _take_hold(self, key_id: bytes, by: bytes, *, on: bool) -> bool:
        if key_id not in self.entries or not by:
            return False
        before = self.holds.get(key_id, frozenset())
        self.holds[key_id] = before | {by} if on else before - {by}
        return True

    def _take_store(self, store_id: bytes, url: str) -> bool:
        if self._header is None or not store_id:
            return False
        self.stores[store_id] = url
        return True

    def is_over(self, key_id: bytes, now_us: int) -> bool:
        """Whether a key had a time, and that is over."""
        return 0 < self.until.get(key_id, 0) <= now_us


def damaged(where: str, what: str) -> KeyringError:
    """What is raised of a keyring that isn't as it was written."""
    return KeyringError(
        f"{where}: {what}; put the keyring back from its copy, or move it aside and bring the keys into a "
        "new one: "
        "everthread keyring restore FILE. Nothing was changed"
    )


def encode_record(record: Record) -> bytes:
    """A record with its checksum and newline: one ``}`` and no NUL, so that a torn one can be recognised."""
    rest = b"," + msgspec.json.encode(record)[1:]
    return _RECORD_START + _sum(rest) + b'"' + rest + b"\n"


def decode_record(data: bytes) -> Record | None:
    """The record in ``data``, without its newline; ``None`` if it is damaged."""
    rest = data[_SUM_END + 1 :]
    if data[: _SUM_END + 1] != _RECORD_START + _sum(rest) + b'"':
        return None
    body = b"{" + rest[1:]
    try:
        header = msgspec.json.decode(body, type=_AnyHeader)
        if header.kind == "header" and header.format > FORMAT:
            raise SchemaVersionError(
                f"the keyring has format {header.format}; this Everthread reads up to {FORMAT}: upgrade it",
                found=header.format,
                supported=FORMAT,
            )
        return _record_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def store_record(url: str) -> StoreRecord:
    """The record of a store. Like every other it has one ``}``, at its end."""
    url = url.replace("}", "%7D")
    return StoreRecord(hashlib.sha256(url.encode()).hexdigest()[: 2 * ID_BYTES], url)


def unhex(text: str, size: int) -> bytes:
    """The bytes that ``text`` spells in hexadecimal; empty unless there are ``size`` of them."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        return b""
    return data if len(data) == size else b""


def subject_token(token_key: bytes, subject: str) -> bytes:
    """What stands for a subject's name in the records."""
    return hmac.digest(token_key, subject.encode(), "sha256")


class Wrapping:
    """Keys of one keyring encrypted under a master key, each for one purpose."""

    def __init__(self, master: bytes, keyring_id: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self.keyring_id = keyring_id
        self._cipher = AESGCM(master)
        self._label = _AD_LABEL + bytes([FORMAT]) + keyring_id

    def wrap(self, key: bytes, nonce: bytes, purpose: bytes) -> bytes:
        return nonce + self._cipher.encrypt(nonce, key, self._label + purpose)

    def unwrap(self, wrapped: bytes, purpose: bytes) -> bytes | None:
        """The wrapped key, or ``None`` if it wasn't wrapped under this master key for this purpose."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], self._label + purpose)
        except InvalidTag:
            return None


def key_purpose(key_id: bytes, token: bytes) -> bytes:
    """A subject's key is bound to its id and to its subject, so that records can't be patched together."""
    return b"subject key\x00" + key_id + token


def tokens_purpose(keyring_id: bytes) -> bytes:
    """The token key of another keyring is bound to that one's id."""
    return b"other token key\x00" + keyring_id


TOKEN_KEY_PURPOSE = b"token key\x00"
SIGNING_KEY_PURPOSE = b"signing key\x00"


class KeyringState:
    """The records as far as they have been read, and what has been decrypted of them."""

    def __init__(self, generation: object, where: str) -> None:
        self.generation = generation
        self.table = KeyTable(where)
        #: How many bytes the medium had when they were read, and how many are known to be durable.
        self.size = 0
        self.durable_end = 0
        self.master = b""
        self.master_is_next = False
        self.token_key = b""
        #: The key that seals for a subject just now; dropped when new records come.
        self.sealing: dict[str, SubjectKey] = {}
        self._keys: dict[bytes, SubjectKey] = {}
        self._tokens: dict[str, bytes] = {}
        self._other_token_keys: dict[bytes, bytes] = {}

    @property
    def wrapping(self) -> Wrapping:
        return Wrapping(self.master, self.table.keyring_id)

    def token(self, subject: str) -> bytes:
        token = self._tokens.get(subject)
        if token is None:
            token = self._tokens[subject] = subject_token(self.token_key, subject)
        return token

    def live_ids(self, subject: str) -> list[bytes]:
        """Keys that came from other keyrings first: new values are sealed under a key of this one."""
        own = self.table.by_token.get(self.token(subject), [])
        if not self.table.other_tokens:
            return own
        tokens = (subject_token(self.other_token_key(by), subject) for by in self.table.other_tokens)
        return [key_id for token in tokens for key_id in self.table.by_token.get(token, [])] + own

    def other_token_key(self, keyring_id: bytes) -> bytes:
        """The token key of a keyring from which keys were taken in."""
        token_key = self._other_token_keys.get(keyring_id)
        if token_key is None:
            token_key = self.wrapping.unwrap(self.table.other_tokens[keyring_id], tokens_purpose(keyring_id))
            if token_key is None:
                raise damaged(self.table.where, f"the token key {keyring_id.hex()} is damaged")
            self._other_token_keys[keyring_id] = token_key
        return token_key

    def key(self, key_id: bytes) -> SubjectKey:
        key = self._keys.get(key_id)
        if key is None:
            key = self._keys[key_id] = SubjectKey(key_id, self._plain_key(self.wrapping, key_id))
        return key

    def _plain_key(self, wrapping: Wrapping, key_id: bytes) -> bytes:
        token, wrapped = self.table.entries[key_id]
        plain = wrapping.unwrap(wrapped, key_purpose(key_id, token))
        if plain is None:
            raise damaged(self.table.where, f"the key {key_id.hex()} is damaged")
        return plain

    def signing_key(self) -> bytes:
        """The private key (Ed25519) that signs reports."""
        plain = self.wrapping.unwrap(bytes.fromhex(self.table.header.signing_key), SIGNING_KEY_PURPOSE)
        if plain is None:
            raise damaged(self.table.where, "the signing key is damaged")
        return plain

    def lend(self, key_ids: Collection[bytes]) -> list[KeyParcel]:
        """Keys in clear, one parcel for each keyring whose tokens they have."""
        table = self.table
        by_origin: dict[bytes, list[KeyInParcel]] = {}
        for key_id in dict.fromkeys(key_ids):
            if key_id in table.entries:
                key = (key_id, table.entries[key_id][0], self.key(key_id).key)
                by_origin.setdefault(table.came_from.get(key_id, table.keyring_id), []).append(key)
        return [
            KeyParcel(
                origin,
                self.token_key if origin == table.keyring_id else self.other_token_key(origin),
                keys,
                {key[0]: table.until[key[0]] for key in keys if key[0] in table.until},
            )
            for origin, keys in by_origin.items()
        ]

    def taken_in(self, parcels: Sequence[KeyParcel], random_bytes: RandomBytes) -> list[Record]:
        """The records that add keys of other keyrings: none that is here or was destroyed here."""
        table, wrapping = self.table, self.wrapping
        records: list[Record] = []
        known = set(table.entries) | table.destroyed
        origins = {table.keyring_id, *table.other_tokens}
        for parcel in parcels:
            origin = parcel.keyring_id
            new = [key for key in parcel.keys if key[0] not in known]
            if new and origin not in origins:
                records.append(tokens_record(wrapping, origin, parcel.token_key, random_bytes))
                origins.add(origin)
            # A key that comes back from an archive of this very keyring is one of its own.
            by = b"" if origin == table.keyring_id else origin
            for key_id, token, key in new:
                if key_id in parcel.until:
                    records.append(UntilRecord(key_id.hex(), parcel.until[key_id]))
                records.append(key_record(wrapping, key_id, key, token, random_bytes, by))
                known.add(key_id)
        return records

    def survivors(
        self, destroyed: Collection[bytes], wrapping: Wrapping, random_bytes: RandomBytes
    ) -> Iterator[Record]:
        """All records but the header, without the ``destroyed`` keys, wrapped anew."""
        table, opening = self.table, self.wrapping
        gone = table.destroyed | set(destroyed)
        for key_id in sorted(gone):
            yield DestroyedRecord(key_id.hex())
        for origin in table.other_tokens:
            yield tokens_record(wrapping, origin, self.other_token_key(origin), random_bytes)
        for key_id, (token, _) in table.entries.items():
            if key_id not in gone:
                key, by = self._plain_key(opening, key_id), table.came_from.get(key_id, b"")
                yield key_record(wrapping, key_id, key, token, random_bytes, by)
        for key_id, until_us in table.until.items():
            if key_id not in gone and key_id in table.entries:
                yield UntilRecord(key_id.hex(), until_us)
        for key_id, holds in table.holds.items():
            if key_id not in gone:
                yield from (HoldRecord(key_id.hex(), by.hex()) for by in sorted(holds))
        yield from (StoreRecord(store_id.hex(), url) for store_id, url in table.stores.items())


def next_header(
    state: KeyringState | None,
    wrapping: Wrapping,
    source: MasterSource,
    wrapped_master: str,
    random_bytes: RandomBytes,
) -> Header:
    """The header of the records that are written next: of a new keyring, or wrapped anew."""
    if state is None:
        epoch, token_key, signing_key = 0, random_bytes(KEY_BYTES), random_bytes(KEY_BYTES)
    else:
        epoch, token_key, signing_key = state.table.header.epoch, state.token_key, state.signing_key()
    return Header(
        format=FORMAT,
        id=wrapping.keyring_id.hex(),
        # The random part tells a keyring from an older copy of it that went on by itself.
        epoch=epoch + 1 + int.from_bytes(random_bytes(4), "big"),
        master=source,
        token_key=wrapping.wrap(token_key, random_bytes(NONCE_BYTES), TOKEN_KEY_PURPOSE).hex(),
        signing_key=wrapping.wrap(signing_key, random_bytes(NONCE_BYTES), SIGNING_KEY_PURPOSE).hex(),
        wrapped_master=wrapped_master,
    )


def key_record(
    wrapping: Wrapping, key_id: bytes, key: bytes, token: bytes, random_bytes: RandomBytes, by: bytes = b""
) -> KeyRecord:
    """A key, wrapped, with the token of its subject; ``by`` is the keyring whose token that is."""
    wrapped = wrapping.wrap(key, random_bytes(NONCE_BYTES), key_purpose(key_id, token))
    return KeyRecord(id=key_id.hex(), token=token.hex(), key=wrapped.hex(), by=by.hex())


def tokens_record(
    wrapping: Wrapping, keyring_id: bytes, token_key: bytes, random_bytes: RandomBytes
) -> TokensRecord:
    """The key under which another keyring makes its tokens, wrapped."""
    wrapped = wrapping.wrap(token_key, random_bytes(NONCE_BYTES), tokens_purpose(keyring_id))
    return TokensRecord(id=keyring_id.hex(), key=wrapped.hex())


def _sum(rest: bytes) -> bytes:
    return hashlib.sha256(rest).hexdigest()[:_SUM_DIGITS].encode()
