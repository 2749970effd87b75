"""The lines of a keyring file, and keys wrapped under a master key. Pure: the file itself is elsewhere.

Specified in ``docs/internals/sealing.md``.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Literal

import msgspec

from everthread.codec.seal import ID_BYTES, KEY_BYTES, NONCE_BYTES, TAG_BYTES
from everthread.errors import KeyringError, SchemaVersionError

#: Format 2 may have times, format 3 legal holds as well; a keyring that never had any stays in format 1,
#: which older code reads, too.
FORMAT, TIMES_FORMAT, HOLDS_FORMAT = 1, 2, 3
TOKEN_BYTES = 32
_TIME_MAX = 1 << 63
WRAPPED_BYTES = NONCE_BYTES + KEY_BYTES + TAG_BYTES

_LINE_START = b'{"sum":"'
_SUM_DIGITS = 16
_SUM_END = len(_LINE_START) + _SUM_DIGITS
_AD_LABEL = b"everthread keyring\x00"

MasterSource = Literal["file", "env", "hook"]


class Header(msgspec.Struct, tag_field="kind", tag="header", omit_defaults=True, forbid_unknown_fields=True):
    """Line 1. ``id``, the token key and the signing key stay the same for the keyring's whole life."""

    format: int
    id: str
    epoch: int
    master: MasterSource
    token_key: str
    wrapped_master: str = ""
    signing_key: str = ""


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
    """Until when a key may be used, in microseconds since 1970; 0 for ever. The last line of a key counts."""

    id: str
    us: int


class HoldRecord(
    msgspec.Struct, tag_field="kind", tag="hold", omit_defaults=True, forbid_unknown_fields=True
):
    """That a key must not be destroyed: ``by`` tells holds on it apart. The last line of a hold counts."""

    id: str
    by: str
    on: bool = True


class _AnyHeader(msgspec.Struct):
    kind: str
    format: int = 0


Record = Header | KeyRecord | DestroyedRecord | TokensRecord | UntilRecord | HoldRecord
_record_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class KeyTable:
    """What the lines read so far say. ``end`` counts the bytes that they take up in the file."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.end = 0
        self.destroyed: set[bytes] = set()
        #: Key id to (token, wrapped key).
        self.entries: dict[bytes, tuple[bytes, bytes]] = {}
        self.by_token: dict[bytes, list[bytes]] = {}
        #: Of keys that came from another keyring: its id. And by that id its token key, wrapped.
        self.came_from: dict[bytes, bytes] = {}
        self.other_tokens: dict[bytes, bytes] = {}
        #: Until when keys may be used, of those that anybody ever said it of; 0 for ever.
        self.until: dict[bytes, int] = {}
        #: The legal holds on keys.
        self.holds: dict[bytes, frozenset[bytes]] = {}
        self._header: Header | None = None
        self._lines = 0
        self._newline_missing = False

    @property
    def header(self) -> Header:
        if self._header is None:
            raise KeyringError(f"{self.where}: line 1 is damaged")
        return self._header

    @property
    def keyring_id(self) -> bytes:
        return bytes.fromhex(self.header.id)

    def read(self, data: bytes) -> None:
        """Take in ``data``, which stands at ``end``.

        A torn last line is left out, and ``end`` stays before it. Any other damage raises
        :class:`KeyringError` naming the line; a newer format raises :class:`SchemaVersionError`.
        """
        position = 0
        if self._newline_missing and data.startswith(b"\n"):
            position, self._newline_missing = 1, False
        while position < len(data):
            cut = data.find(b"\n", position)
            line = data[position:] if cut < 0 else data[position:cut]
            if self._newline_missing or not self._take(decode_record(line)):
                at_end = cut < 0 or cut == len(data) - 1
                # A crash leaves a prefix of a line, or zeros where the file grew before its data arrived.
                # Everything else is damage to a key that somebody may have been promised.
                if at_end and (b"\x00" in line or (cut < 0 and b"}" not in line)):
                    break
                raise KeyringError(f"{self.where}: line {self._lines + 1} is damaged")
            self._lines += 1
            self._newline_missing = cut < 0
            position = len(data) if cut < 0 else cut + 1
        self.end += position
        # Raises if not even the first line is whole: a keyring is never created without it.
        _ = self.header

    def next_line(self, record: Record) -> bytes:
        """The bytes that append ``record`` at ``end``."""
        return (b"\n" if self._newline_missing else b"") + encode_record(record)

    def _take(self, record: Record | None) -> bool:
        if record is None:
            return False
        key_id = unhex(record.id, ID_BYTES)
        if isinstance(record, UntilRecord):
            return self._take_time(key_id, record.us)
        if isinstance(record, HoldRecord):
            return self._take_hold(key_id, unhex(record.by, ID_BYTES), on=record.on)
        known = key_id in self.entries or key_id in self.destroyed or key_id in self.other_tokens
        if not key_id or known:
            return False
        if isinstance(record, Header):
            wrapped_master = unhex(record.wrapped_master, len(record.wrapped_master) // 2)
            if self._lines or not FORMAT <= record.format <= HOLDS_FORMAT:
                return False
            if (record.master == "hook") != bool(wrapped_master):
                return False
            if not unhex(record.token_key, WRAPPED_BYTES):
                return False
            if record.signing_key and not unhex(record.signing_key, WRAPPED_BYTES):
                return False
            self._header = record
            return True
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

    def _take_time(self, key_id: bytes, until_us: int) -> bool:
        if self._header is None or self._header.format < TIMES_FORMAT:
            return False
        if not key_id or key_id in self.destroyed or not 0 <= until_us < _TIME_MAX:
            return False
        self.until[key_id] = until_us
        return True

    def _take_hold(self, key_id: bytes, by: bytes, *, on: bool) -> bool:
        if self._header is None or self._header.format < HOLDS_FORMAT or key_id not in self.entries or not by:
            return False
        before = self.holds.get(key_id, frozenset())
        self.holds[key_id] = before | {by} if on else before - {by}
        return True

    def is_over(self, key_id: bytes, now_us: int) -> bool:
        """Whether a key had a time, and that is over."""
        return 0 < self.until.get(key_id, 0) <= now_us


def encode_record(record: Record) -> bytes:
    """One line with its checksum and newline. It holds one ``}`` and no NUL; torn lines are told by that."""
    rest = b"," + msgspec.json.encode(record)[1:]
    return _LINE_START + _sum(rest) + b'"' + rest + b"\n"


def decode_record(line: bytes) -> Record | None:
    """The record in a line without its newline; ``None`` if it is damaged."""
    rest = line[_SUM_END + 1 :]
    if line[: _SUM_END + 1] != _LINE_START + _sum(rest) + b'"':
        return None
    body = b"{" + rest[1:]
    try:
        header = msgspec.json.decode(body, type=_AnyHeader)
        if header.kind == "header" and header.format > HOLDS_FORMAT:
            raise SchemaVersionError(
                f"the keyring has format {header.format}; this Everthread reads up to {HOLDS_FORMAT}: "
                "upgrade it",
                found=header.format,
                supported=HOLDS_FORMAT,
            )
        return _record_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def unhex(text: str, size: int) -> bytes:
    """The bytes that ``text`` spells in hexadecimal; empty unless there are ``size`` of them."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        return b""
    return data if len(data) == size else b""


def subject_token(token_key: bytes, subject: str) -> bytes:
    """What stands for a subject's name in the file."""
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
    """A subject's key is bound to its id and to its subject, so that lines can't be patched together."""
    return b"subject key\x00" + key_id + token


def tokens_purpose(keyring_id: bytes) -> bytes:
    """The token key of another keyring is bound to that one's id."""
    return b"other token key\x00" + keyring_id


TOKEN_KEY_PURPOSE = b"token key\x00"
SIGNING_KEY_PURPOSE = b"signing key\x00"


def _sum(rest: bytes) -> bytes:
    return hashlib.sha256(rest).hexdigest()[:_SUM_DIGITS].encode()
