"""The keys that come with an archive, on their way into a keyring: none of anybody who was erased."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from everthread.codec.archive import KeysEntry, SealedEntry
from everthread.errors import KeyringError
from everthread.keyring.parcel import KeyParcel, ParcelSecret
from everthread.stores.contract import split_keys

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core


class KeyTaking:
    """What an import does about keys. Without a secret those in the archive are left where they are."""

    def __init__(self, core: Core, secret: ParcelSecret | None) -> None:
        self._core = core
        self._secret = secret
        self._parcels: list[KeyParcel] = []
        self._needed: set[bytes] = set()

    def add(self, entry: KeysEntry, archive: bytes) -> None:
        """Open keys. Raises :class:`KeyringError` if the secret isn't the one that they are under."""
        if self._secret is not None:
            self._parcels.append(self._secret.open(entry, archive))

    def note(self, entry: SealedEntry) -> None:
        """Which keys are needed by what comes."""
        for _, joined, _ in entry.rows:
            self._needed.update(split_keys(joined))

    def check(self) -> None:
        """When all of the archive was looked at, and nothing was written."""
        if self._secret is not None and self._needed and not self._parcels:
            raise KeyringError(
                "this archive holds no keys: export(…, keys=…) puts them in. Import it without keys=; what "
                "is sealed opens where the keyring has its keys. Nothing was changed"
            )

    def take_in(self) -> int:
        """Put them into the keyring; how many are new there."""
        vault, backend = self._core.vault, self._core.backend
        key_ids = [key_id for parcel in self._parcels for key_id, _, _ in parcel.keys]
        if not key_ids:
            return 0
        dead = backend.erased(key_ids)
        alive = [
            msgspec.structs.replace(parcel, keys=[key for key in parcel.keys if key[0] not in dead])
            for parcel in self._parcels
        ]
        taken = vault.keyring.take_in(alive)
        # Somebody may have been erased in this very moment.
        late = backend.erased(key_ids) - dead
        if late:
            vault.keyring.destroy_keys(late)
        return taken - len(late)

    def missing(self) -> int:
        """How many of the keys that are needed aren't in the keyring, nor known to be destroyed."""
        gone = self._core.backend.erased(self._needed) if self._needed else set()
        return self._missing(self._needed - gone) if self._needed - gone else 0

    def _missing(self, needed: set[bytes]) -> int:
        with suppress(KeyringError):
            keyring = self._core.vault.keyring
            return sum(keyring.key(k) is None and not keyring.is_destroyed(k) for k in needed)
        return len(needed)
