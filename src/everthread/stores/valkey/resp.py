"""The protocol of Valkey and Redis (RESP2): commands to bytes, bytes to replies. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

#: More is to come.
MISSING: Final = object()

Argument = bytes | str | int


class ReplyError(Exception):
    """An error that the server answered with; ``code`` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.code = text.partition(" ")[0]


class ProtocolError(Exception):
    """What came isn't the protocol: the connection is of no use any more."""


def write_command(arguments: Iterable[Argument]) -> bytes:
    out = [b""]
    count = 0
    for each in arguments:
        part = each if type(each) is bytes else str(each).encode()
        count += 1
        out.append(b"$%d\r\n%b\r\n" % (len(part), part))
    out[0] = b"*%d\r\n" % count
    return b"".join(out)


class Replies:
    """Takes bytes as they come and gives whole replies."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        #: The arrays that are being read, each with how many elements are to come.
        self._open: list[tuple[list[Any], int]] = []

    def feed(self, data: bytes) -> None:
        self._buffer += data

    @property
    def empty(self) -> bool:
        """Whether nothing has come that wasn't given out."""
        return self._at == len(self._buffer) and not self._open

    def next(self) -> Any:
        """The next reply, an error as a :class:`ReplyError`; :data:`MISSING` while it isn't all there."""
        while True:
            value = self._element()
            if value is MISSING:
                return MISSING
            while self._open:
                array, left = self._open.pop()
                array.append(value)
                if left > 1:
                    self._open.append((array, left - 1))
                    break
                value = array
            else:
                if self._at == len(self._buffer):
                    self._buffer.clear()
                    self._at = 0
                elif self._at > 1 << 20:
                    del self._buffer[: self._at]
                    self._at = 0
                return value

    def _element(self) -> Any:
        """A value that isn't an array, or an empty one."""
        while True:
            buffer, at = self._buffer, self._at
            end = buffer.find(b"\r\n", at)
            if end < 0:
                return MISSING
            kind, rest = buffer[at], bytes(buffer[at + 1 : end])
            if kind == 0x24:  # $
                size = _number(rest)
                if size < 0:
                    self._at = end + 2
                    return None
                if len(buffer) < end + size + 4:
                    return MISSING
                self._at = end + size + 4
                return bytes(buffer[end + 2 : end + 2 + size])
            self._at = end + 2
            if kind == 0x3A:  # :
                return _number(rest)
            if kind == 0x2B:  # +
                return rest
            if kind == 0x2D:  # -
                return ReplyError(rest.decode("utf-8", "replace"))
            if kind != 0x2A:  # *
                raise ProtocolError(f"not an answer: {bytes(buffer[at : at + 20])!r}")
            count = _number(rest)
            if count < 0:
                return None
            if count == 0:
                return []
            self._open.append(([], count))


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise ProtocolError(f"not a number: {text[:20]!r}") from None
