"""Personal values on their way in and out of a thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from everthread.codec.lowering import pack
from everthread.codec.seal import (
    SealedRef,
    Sealer,
    SubjectKey,
    make_reference,
    may_refer,
    open_sealed,
    read_reference,
    seal,
)
from everthread.codec.types import Code
from everthread.codec.values import Open, decode, decode_plain, encode, lift, lower, same
from everthread.errors import (
    ErasedError,
    EverthreadError,
    InvalidValueError,
    KeyringError,
    SealError,
    StateCorruptedError,
)
from everthread.limits import Limits
from everthread.stores.contract import Cell, ErasedKey, split_keys
from everthread.stores.urls import kind_of
from everthread.values import Erased, Personal, Tagged

if TYPE_CHECKING:
    from everthread.keyring.keyring import Keyring

#: What stands before a text, at most, when it is encoded.
_TEXT_HEAD_BYTES = 5

#: Where cells about persons are: for the whole store, in no namespace that a public name reaches.
PEOPLE = "\0people"
#: The cells of values that a legal hold keeps begin with this; the id of the value in history follows.
KEPT = "kept/"
_KEPT_PAGE = 1_000

#: (value id, the key ids one after another, sealed bytes): what a store keeps out of line.
SealedRow = tuple[bytes, bytes, bytes]


def same_content(a: Any, b: Any, open_: Callable[[Tagged], Any]) -> bool:
    """Whether two lowered items say the same. Sealed parts count by what they hold, erased ones as equal."""
    if type(a) is not type(b):
        return False
    if type(a) is dict:
        return a.keys() == b.keys() and all(same_content(a[k], b[k], open_) for k in a)
    if type(a) is list:
        return len(a) == len(b) and all(same_content(x, y, open_) for x, y in zip(a, b, strict=True))
    if same(a, b):
        return True
    if type(a) is not Tagged or a.code != b.code or a.code != Code.SEALED:
        return False
    ours, theirs = open_(a), open_(b)
    return isinstance(ours, Erased) or isinstance(theirs, Erased) or bool(ours.value == theirs.value)


def erased_meanwhile() -> ErasedError:
    """What is raised where somebody's value would be stored again."""
    return ErasedError(
        "a personal value belongs to somebody who was erased; it can't be stored again: "
        "take it out, or discard() the changes"
    )


def erased_since() -> ErasedError:
    """What is raised where somebody's value would be shown that was read before they were erased."""
    return ErasedError(
        "a personal value belongs to somebody who was erased since it was read; nobody can read it any more. "
        "Read its place again: it holds Erased"
    )


class SealedMetadata(Mapping[str, Any]):
    """Metadata with something sealed in it, which is opened when it is looked at: a version is remembered
    for long, and who was erased meanwhile isn't shown any more."""

    def __init__(self, packed: bytes, open_: Open | None) -> None:
        self._lowered = decode(packed)
        self._open = open_

    def __getitem__(self, name: str) -> Any:
        return lift(self._lowered[name], self._open)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lowered)

    def __len__(self) -> int:
        return len(self._lowered)

    def __repr__(self) -> str:
        return repr(dict(self))


def read_metadata(packed: bytes, open_: Open | None) -> Mapping[str, Any]:
    """Metadata as a version shows them."""
    if may_refer(packed):
        return SealedMetadata(packed, open_)
    return MappingProxyType(decode_plain(packed))


class _Origin:
    """Where a personal value was read: in a store, or among what a handle hadn't committed yet."""

    def __init__(self, vault: Vault, pending: dict[bytes, SealedRow]) -> None:
        self.tenant = vault.tenant
        self._vault = vault
        self._pending = pending

    def fetch(self, reference: SealedRef) -> bytes:
        row = self._pending.get(reference.value_id)
        return row[2] if row is not None and row[2] else self._vault.fetch(reference)


class Kept(NamedTuple):
    """What stands for a value of a destroyed key that a legal hold keeps: in which thread, and under which
    keys."""

    thread: str
    tagged: Tagged


def pack_kept(kept: Kept) -> bytes:
    return msgspec.msgpack.encode([kept.thread, kept.tagged.data])


def _read_kept(value: bytes) -> Kept:
    try:
        thread, data = msgspec.msgpack.decode(value, type=tuple[str, bytes])
    except msgspec.MsgspecError as error:
        raise StateCorruptedError("the place of a held value is damaged", where=PEOPLE) from error
    return Kept(thread, Tagged(Code.SEALED, data))


class Vault:
    """Seals under the keys of a keyring, which is opened when the first personal value comes by.

    Whoever was erased is known from two sides: from the keyring, which is shared by many stores, and from the
    ledger of this store, which also holds if an old copy of the keyring was put back.
    """

    def __init__(
        self,
        read_sealed: Callable[[Iterable[bytes]], Mapping[bytes, bytes]],
        read_ledger: Callable[[], Iterable[ErasedKey]],
        read_cells: Callable[[str, str, str | None, int], list[tuple[str, Cell]]],
        identity: Callable[[], str],
        url: str,
        keyring: Any,
        tenant: str,
        limits: Limits,
        random_bytes: Callable[[int], bytes],
        now_us: Callable[[], int],
    ) -> None:
        self._read_sealed = read_sealed
        self._read_ledger = read_ledger
        self._erased: set[bytes] | None = None
        self._read_cells = read_cells
        #: The epoch of the keyring when it was read, and what is kept by the id of a value.
        self._kept: tuple[int, dict[bytes, Kept]] | None = None
        self._identity = identity
        self._url = url
        self._given = keyring
        #: Whether the keyring knows that this store seals under its keys.
        self._is_noted = kind_of(url) == "memory"
        self._keyring: Keyring | None = None
        self.tenant = tenant
        self._limits = limits
        self._random_bytes = random_bytes
        self._now_us = now_us
        self._sealer = Sealer(tenant, now_us, random_bytes)

    @property
    def keyring(self) -> Keyring:
        if self._keyring is None:
            # Most stores never see a personal value: the import waits for the first one.
            from everthread.keyring.keyring import open_keyring

            keyring = open_keyring(self._given)
            keyring.keep_apart(self._url, self._identity)
            self._keyring = keyring
        return self._keyring

    def check_keyring(self) -> None:
        """Open a keyring that may be kept where this store is. Raises :class:`KeyringError` if it is."""
        if isinstance(self._given, str) and kind_of(self._given) == kind_of(self._url) != "memory":
            _ = self.keyring

    @property
    def _ledger(self) -> set[bytes]:
        """The keys in the ledger of the store. Read once: what comes later shows in the keyring, too."""
        if self._erased is None:
            self._erased = {entry.key_id for entry in self._read_ledger()}
        return self._erased

    def note_erased(self, key_ids: Iterable[bytes]) -> None:
        """Somebody is being erased from this store."""
        self._ledger.update(key_ids)

    def forget_ledger(self) -> None:
        """The store has another content now: its ledger is read again."""
        self._erased = None
        self._kept = None

    def kept(self) -> Mapping[bytes, Kept]:
        """What legal holds keep of persons whose keys were destroyed, by the id that a value has in history.
        Read again whenever keys were destroyed: only then something is kept."""
        epoch = self.keyring.epoch
        if self._kept is None or self._kept[0] != epoch:
            found: dict[bytes, Kept] = {}
            after: str | None = None
            while page := self._read_cells(PEOPLE, KEPT, after, _KEPT_PAGE):
                for name, cell in page:
                    found[bytes.fromhex(name.removeprefix(KEPT))] = _read_kept(cell.value)
                after = page[-1][0]
            self._kept = epoch, found
        return self._kept[1]

    def forget_kept(self) -> None:
        """What is kept is read again."""
        self._kept = None

    def _stands_for(self, value_id: bytes) -> Tagged | None:
        """What is kept of a value whose keys were destroyed."""
        with suppress(KeyringError):
            found = self.kept().get(value_id)
            if found is not None and not self._is_closed(read_reference(found.tagged).key_ids):
                return found.tagged
        return None

    def is_erased(self, key_ids: Iterable[bytes]) -> bool:
        """Whether any of these keys was destroyed, or its time is over. A keyring that can't be used doesn't
        say so."""
        with suppress(KeyringError):
            return self._is_closed(key_ids)
        return False

    def can_open(self, key_ids: tuple[bytes, ...]) -> bool:
        """Whether what is sealed under these keys could be opened, if it is there. Not with a keyring that
        can't be used."""
        with suppress(KeyringError):
            return not self._is_closed(key_ids) and None not in map(self.keyring.key, key_ids)
        return False

    def over(self) -> frozenset[bytes]:
        """The keys whose time is over. A keyring that can't be used doesn't say so."""
        now_us = self._now_us()
        with suppress(KeyringError):
            return frozenset(k for k, until_us in self.keyring.times().items() if 0 < until_us <= now_us)
        return frozenset()

    def is_destroyed(self, key_id: bytes) -> bool:
        """Whether a key was destroyed, here or in the keyring; that its time is over isn't enough."""
        return key_id in self._ledger or self.keyring.is_destroyed(key_id)

    def _is_closed(self, key_ids: Iterable[bytes]) -> bool:
        ledger = self._ledger if self._erased is None else self._erased
        keyring = self._keyring or self.keyring
        return any(k in ledger or keyring.is_closed(k, self._now_us) for k in key_ids)

    def key_for(self, subject: str) -> SubjectKey:
        """The key to seal under. One that this store saw destroyed comes from an old copy of the keyring,
        and is destroyed there as well: who comes back gets a new one. So does whose time was over."""
        key = self.keyring.key_for(subject, self._now_us)
        if key.key_id in self._ledger:
            self.keyring.destroy_keys([k for k in self.keyring.key_ids(subject) if k in self._ledger])
            key = self.keyring.key_for(subject, self._now_us)
        return key

    def seal(self, personal: Personal, pending: dict[bytes, SealedRow]) -> Tagged:
        """The reference that stands for a value; its sealed bytes go to ``pending`` until the commit.

        A value that was read keeps the seal it has, and its sealed bytes come along if they aren't here.
        Raises :class:`ErasedError` if its key was destroyed.
        """
        if personal.sealed is None:
            if len(personal.subjects) == 1 and not personal._sources:
                # Nearly always: made just now, and somebody's own.
                subject, value, keyring = personal.subjects[0], personal._value, self._keyring
                if type(value) is str and value.isascii() and keyring is not None:
                    key, ledger = keyring.key_for(subject, self._now_us), self._erased
                    if ledger is None or key.key_id in ledger:
                        key = self.key_for(subject)
                    if len(value) < self._limits.payload_bytes_max - _TEXT_HEAD_BYTES:
                        if not self._is_noted:
                            self._note_use()
                        value_id, data, tagged = self._sealer.seal(pack(value), key)
                        pending[value_id] = (value_id, key.key_id, data)
                        return tagged
                return self._seal_under([self.key_for(subject)], value, pending)
            return self._seal_under(self._keys_of(personal), personal.value, pending)
        reference = read_reference(personal.sealed)
        self._check_alive(reference.key_ids)
        if personal._origin is None or personal._origin.tenant != self.tenant:
            # Sealed for another tenant: the same people, but another seal.
            return self._seal_under(self._keys(reference), personal.value, pending)
        if reference.value_id not in pending:
            here = self._read_sealed([reference.value_id])
            data = b"" if reference.value_id in here else personal._origin.fetch(reference)
            # Without bytes: here already, but the keys are looked at again when it is committed.
            pending[reference.value_id] = (reference.value_id, b"".join(reference.key_ids), data)
        return personal.sealed

    def _note_use(self) -> None:
        """Let the keyring know of this store, once: whoever looks after it must know whose values need it."""
        self._is_noted = True
        # It is for people who look: nothing fails for it that would go on without. A keyring that can't be
        # used says so when it is asked for a key.
        with suppress(EverthreadError):
            self.keyring.note_store(self._url)

    def _keys_of(self, personal: Personal) -> list[SubjectKey]:
        """The keys of everybody whom a value belongs to, as far as they are known by name or by key."""
        if personal.sealed is not None:
            reference = read_reference(personal.sealed)
            self._check_alive(reference.key_ids)
            return self._keys(reference)
        keys = [key for source in personal._sources for key in self._keys_of(source)]
        return [self.key_for(subject) for subject in personal.subjects] + keys

    def _seal_under(self, given: list[SubjectKey], value: Any, pending: dict[bytes, SealedRow]) -> Tagged:
        found = {key.key_id: key for key in given}

        def within(personal: Personal) -> Any:
            # Somebody's value inside of another's: one seal, under the keys of both.
            found.update((key.key_id, key) for key in self._keys_of(personal))
            return lower(personal.value, limits=self._limits, seal=within, root="a personal value")

        try:
            inner = lower(value, limits=self._limits, seal=within, root="a personal value")
        except InvalidValueError as error:
            # Where and what exactly isn't told: that would be in a log soon.
            raise type(error)(
                "something in a personal value can't be stored; what it is, and where, isn't told here",
                path="a personal value",
            ) from None
        return self._put(encode(inner, self._limits), list(found.values()), pending)

    def reseal(
        self, tagged: Tagged, gone: Collection[bytes], key: SubjectKey, pending: dict[bytes, SealedRow]
    ) -> Tagged:
        """The same value with ``key`` in the place of the keys that are ``gone``: only for who is about to
        destroy these. Raises :class:`SealError`."""
        reference = read_reference(tagged)
        plain = open_sealed(self.fetch(reference), reference, self._keys(reference), self.tenant)
        others = [each for each in self._keys(reference) if each.key_id not in gone]
        return self._put(plain, [*others, key], pending)

    def _put(self, plain: bytes, keys: list[SubjectKey], pending: dict[bytes, SealedRow]) -> Tagged:
        if not self._is_noted:
            self._note_use()
        if len(keys) == 1:
            value_id, data, tagged = self._sealer.seal(plain, keys[0])
            pending[value_id] = (value_id, keys[0].key_id, data)
            return tagged
        value_id, _ = self._sealer.new()
        data = seal(plain, keys, value_id, self.tenant, self._random_bytes)
        key_ids = [key.key_id for key in keys]
        pending[value_id] = (value_id, b"".join(key_ids), data)
        return make_reference(key_ids, value_id, data)

    def _keys(self, reference: SealedRef) -> list[SubjectKey]:
        keys = [self.keyring.key(key_id) for key_id in reference.key_ids]
        if None in keys:
            raise SealError(
                "the key of a personal value isn't in this keyring; open the store with the keyring= it was "
                "sealed under, bring back a backup of that one (everthread keyring restore FILE), or "
                "import an archive with its keys"
            )
        return [key for key in keys if key is not None]

    def _check_readable(self, key_ids: tuple[bytes, ...]) -> None:
        if self._is_closed(key_ids):
            raise erased_since()

    def _check_alive(self, key_ids: tuple[bytes, ...]) -> None:
        if self._is_closed(key_ids):
            raise erased_meanwhile()

    def allows(self, pending: dict[bytes, SealedRow]) -> bool:
        """Whether one value is pending, of one person, as nearly always, and may be committed. If not,
        :meth:`check_pending` tells more."""
        if len(pending) != 1 or self._erased is None or self._keyring is None:
            return False
        ((_, joined, _),) = pending.values()
        return (
            len(joined) == 16
            and joined not in self._erased
            and not self._keyring.is_closed(joined, self._now_us)
        )

    def check_pending(
        self, pending: dict[bytes, SealedRow], still_used: Callable[[], set[bytes]] | None = None
    ) -> None:
        """Before a commit: none of the keys used since the last one has been destroyed meanwhile, and no
        key's time is over.

        ``still_used`` tells which values what is about to be written refers to: others, which were
        overwritten since, are dropped. Raises :class:`ErasedError`.
        """
        keys = {key_id for _, joined, _ in pending.values() for key_id in split_keys(joined)}
        gone = {key_id for key_id in keys if self._is_closed((key_id,))}
        if not gone:
            return
        used = still_used() if still_used is not None else pending.keys()
        for value_id, joined, _ in list(pending.values()):
            if not gone.isdisjoint(split_keys(joined)):
                if value_id in used:
                    raise erased_meanwhile()
                del pending[value_id]

    def open(self, tagged: Tagged, pending: dict[bytes, SealedRow]) -> Personal | Erased:
        """What stands for a sealed value when it is read: opened only when ``.value`` is asked for."""
        reference = read_reference(tagged)
        if self.is_erased(reference.key_ids):
            kept = self._stands_for(reference.value_id)
            if kept is None:
                return Erased(tagged)
            tagged, reference = kept, read_reference(kept)
        origin = _Origin(self, pending)

        def reveal() -> Any:
            self._check_readable(reference.key_ids)
            sealed = origin.fetch(reference)
            return decode_plain(open_sealed(sealed, reference, self._keys(reference), self.tenant))

        return Personal.from_sealed(tagged, reveal, origin)

    def open_due(self, tagged: Tagged) -> Any:
        """A value whose time may be over: only for who is about to erase it. Raises :class:`SealError`."""
        reference = read_reference(tagged)
        return decode_plain(open_sealed(self.fetch(reference), reference, self._keys(reference), self.tenant))

    def fetch(self, reference: SealedRef) -> bytes:
        """The sealed bytes of a committed value."""
        data = self._read_sealed([reference.value_id]).get(reference.value_id)
        if data is None:
            # Erased since it was read, unless it was lost.
            self._check_readable(reference.key_ids)
            raise SealError("the sealed bytes of a personal value are gone")
        return data

    def close(self) -> None:
        if self._keyring is not None and self._keyring is not self._given:
            self._keyring.close()
            self._keyring = None
