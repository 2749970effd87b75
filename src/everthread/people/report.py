"""What an erasure came to: a report that names every place, and is signed. It knows no names of persons."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from everthread.arguments import counted
from everthread.errors import InvalidValueError

#: What no erasure can reach, wherever it runs.
_UNREACHABLE = (
    "backups, exports and other copies made before; what is sealed there opens with an old keyring alone",
    "other stores with the same keyring: nothing of the person opens there, the bytes are theirs to purge",
    "the memory, swap and core dumps of processes that have seen the values",
    "whoever was given the values: model providers, tools, logs of other programs",
)
#: Where the master key can't be replaced.
_OLD_KEYRING_COPIES = (
    "copies of the keyring made before, for whoever also holds its master key, which comes from outside and "
    "stays the same"
)
#: What is waited for if somebody else has begun.
IN_PROGRESS = "another process, which is at this erasure and will have its report"
#: Where values were deleted by who noted nothing of them.
NOT_LOOKED = "their bytes weren't looked for: they were deleted before any pieces of them were noted"
#: What became of bytes that were found after all.
LEFT = "left"
#: Named among what an erasure doesn't reach.
DAMAGED = "damaged sealed values: whose they are can't be told"
#: What a place is called where whose something is can't be told.
_UNOPENED = "sealed values under keys that aren't in this keyring"
_ELSEWHERE = "values of persons who were erased through another store"
_HELD = "held values"
_ELSEWHERE_KEYS = "keys of persons who were erased through another store"
#: What a place is called where there is one of it.
_ONE = {
    "keys": "key",
    "surviving keys": "surviving key",
    "sealed values": "sealed value",
    "user values": "user value",
    _HELD: "held value",
    "bytes": "byte",
    "pieces of sealed bytes or keys": "piece of sealed bytes or keys",
    _UNOPENED: "sealed value under a key that isn't in this keyring",
    _ELSEWHERE: "value of a person who was erased through another store",
    _ELSEWHERE_KEYS: "key of a person who was erased through another store",
}


def unopened_places(url: str, values: int) -> tuple[Finding, ...]:
    """The place where values are that may be anybody's; none if there are none."""
    return (Finding(url, _UNOPENED, values, "left alone"),) if values else ()


def elsewhere_places(url: str, values: int, keys: int, outcome: str) -> tuple[Finding, ...]:
    """What of persons who were erased through another store is here, and what becomes of it. Keys tell best
    how many persons they were: which of them were whose is forgotten."""
    if not values:
        return ()
    return (
        Finding(url, _ELSEWHERE, values, outcome),
        Finding(url, _ELSEWHERE_KEYS, keys, "destroyed before"),
    )


def held_places(url: str, stayed: Sequence[tuple[str, int]], reason: str, verb: str) -> tuple[Finding, ...]:
    """What a legal hold keeps, by thread."""
    outcome = f"{verb} under a legal hold ({reason})"
    return tuple(Finding(f"{url}, {where}", _HELD, count, outcome) for where, count in stayed)


def nothing_known(url: str, keyring: str, unnamed: Sequence[ErasureReport]) -> ErasureReport:
    """The report about somebody whom the keyring doesn't know. Whose the ``unnamed`` erasures are that were
    finished on the way nobody can tell any more, so it counts what went with them, and names none of them."""
    # User values are sealed values, too.
    values = sum(max(each.sealed_values, each.user_values) for each in unnamed)
    keys = sum(len(each.key_ids) for each in unnamed)
    left = [place for each in unnamed for place in each.places if place.outcome == LEFT]
    return ErasureReport(
        complete=all(each.complete for each in unnamed),
        store=url,
        keyring=keyring,
        residues=sum(each.residues for each in unnamed),
        places=(*elsewhere_places(url, values, keys, "deleted"), *left),
        waiting=tuple(dict.fromkeys(words for each in unnamed for words in each.waiting)),
        unreached=tuple(dict.fromkeys(words for each in unnamed for words in each.unreached)),
    )


def unreachable_copies(master_rotated: bool) -> tuple[str, ...]:
    """What an erasure doesn't reach, and has to say so."""
    return _UNREACHABLE if master_rotated else (_OLD_KEYRING_COPIES, *_UNREACHABLE)


class Finding(msgspec.Struct, frozen=True):
    """One place where something was, or was looked for: how many of what, and what became of it."""

    where: str
    what: str
    count: int
    outcome: str

    def __str__(self) -> str:
        found = counted(self.count, _ONE.get(self.what, self.what), self.what)
        return f"{self.outcome}: {found} in {self.where}"


class ErasureReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased, where, and what couldn't be reached. True if nothing is left to do here.

    ``waiting`` names what kept it from being complete, such as a reader inside a transaction: erase again, or
    open the store again later. ``residues`` counts bytes of the person that were found after all.
    """

    erasure: str = ""
    dry_run: bool = False
    complete: bool = True
    noted_us: int = 0
    ended_us: int = 0
    store: str
    keyring: str
    key_ids: tuple[str, ...] = ()
    sealed_values: int = 0
    sealed_bytes: int = 0
    user_values: int = 0
    survivors: int = 0
    master_rotated: bool = False
    needles: int = 0
    residues: int = 0
    places: tuple[Finding, ...] = ()
    waiting: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    held: str | None = None
    public_key: str = ""
    signature: str = ""

    def __bool__(self) -> bool:
        return self.complete and not self.residues

    @property
    def unopened(self) -> int:
        """The number of sealed values in this store under keys that the keyring neither has nor destroyed:
        whether any are this person's can't be told without the keyring they were sealed under."""
        return self._count(_UNOPENED)

    @property
    def elsewhere(self) -> int:
        """How many values were deleted of persons who had been erased through another store on the same
        keyring, where nothing is known of the person by name: perhaps they were this one, nobody can tell.
        With ``dry_run`` how many would be, whoever is erased."""
        return self._count(_ELSEWHERE)

    @property
    def stayed(self) -> int:
        """How many values stay because a legal hold covers them and not the others; ``places`` says where,
        and why."""
        return self._count(_HELD)

    def _count(self, what: str) -> int:
        return sum(place.count for place in self.places if place.what == what)

    def plain(self) -> dict[str, Any]:
        """The report as JSON-like data; :meth:`from_plain` reads it back."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data

    @classmethod
    def from_plain(cls, data: Any) -> ErasureReport:
        """A report that was kept as JSON. Raises :class:`InvalidValueError` if it isn't one."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise InvalidValueError(f"this is no report of an erasure: {error}") from error

    def message(self) -> bytes:
        """What is signed: everything but the signature, as JSON with sorted keys and no spaces."""
        return b"everthread erasure report\0" + msgspec.json.encode(
            msgspec.structs.replace(self, signature=""), order="sorted"
        )

    def is_signed(self, public_key: str | bytes | None = None) -> bool:
        """Whether the signature is that of ``public_key``, or of the key that the report itself names.

        Only a key that was learnt elsewhere proves who signed.
        """
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        expected = public_key.hex() if isinstance(public_key, bytes) else public_key
        if expected is not None and expected != self.public_key:
            return False
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.public_key))
            key.verify(bytes.fromhex(self.signature), self.message())
        except (InvalidSignature, ValueError):
            return False
        return True

    def digest(self) -> str:
        """A short name for this very report."""
        return hashlib.sha256(self.message()).hexdigest()[:16]

    def summary(self) -> str:
        """One line for people."""
        values = f"{counted(self.sealed_values, 'sealed value')} ({counted(self.sealed_bytes, 'byte')})"
        keys = counted(len(self.key_ids), "key")
        if self.unopened and not (self.sealed_values or self.user_values or self.waiting):
            return (
                f"nothing of this person was found here with the keyring {self.keyring}, but it "
                f"lacks the keys of {counted(self.unopened, 'sealed value')} in this store: whether any of "
                f"that is this person's can't be told. Use the keyring that it was sealed under{self._also()}"
            )
        found = f"{values} and {counted(self.user_values, 'user value')} under {keys}"
        if self.dry_run:
            return self._plan(found)
        waiting = f"; still waiting: {'; '.join(self.waiting)}" if self.waiting else ""
        if not self.key_ids:
            return self._unknown() + waiting
        if IN_PROGRESS in self.waiting:
            return f"the erasure of {keys} isn't finished{waiting}"
        if self.residues:
            return f"erased {found}, but bytes of the person were found in {counted(self.residues, 'place')}"
        return f"erased {found}{self._held()}{self._left_closed()}{waiting}"

    def _plan(self, found: str) -> str:
        if not self.key_ids and not self.elsewhere:
            return self._unknown()
        verb = "would go on with an erasure that was cut short:" if self.erasure else "would erase"
        text = f"{verb} {found}" if self.key_ids else "nothing is known of this person here by name"
        text += self._held() + self._also() + self._left_closed()
        return text + (f"; held: {self.held}" if self.held else "")

    def _left_closed(self) -> str:
        if not self.unopened:
            return ""
        return (
            f"; not complete: {counted(self.unopened, 'sealed value')} in this store may be this person's "
            f"and can't be opened with the keyring {self.keyring}; erase the person with the keyring that "
            "they were sealed under, too, and let all programs share one keyring"
        )

    def _held(self) -> str:
        if not self.stayed:
            return ""
        stays = "would stay" if self.dry_run else "stayed"
        return f"; {counted(self.stayed, 'value')} {stays} under a legal hold"

    def _also(self) -> str:
        """What goes with whoever is erased."""
        if not self.elsewhere:
            return ""
        values = f"{counted(self.elsewhere, 'value')} under {counted(self._count(_ELSEWHERE_KEYS), 'key')}"
        verb = "would go" if self.dry_run else "went"
        verb += ", too" if self.key_ids else ""
        return f"; {values} of persons who were erased through another store {verb}"

    def _unknown(self) -> str:
        if not self.elsewhere:
            return "nothing is known of this person here; nothing to erase"
        left = f", but bytes were found in {counted(self.residues, 'place')}" if self.residues else ""
        return (
            f"nothing is known of this person here by name; {counted(self.elsewhere, 'value')} of persons "
            f"who had been erased through another store, perhaps this one, went{left}"
        )

    def __str__(self) -> str:
        return self.summary()
