"""A keyring in a directory of its own: ``master.key``, ``keys.jsonl`` and a lock file.

The order of writes that makes it safe against crashes is told in ``docs/internals/sealing.md``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from everthread.codec.keylines import (
    FORMAT,
    TOKEN_KEY_PURPOSE,
    DestroyedLine,
    Header,
    KeyLine,
    KeyTable,
    MasterSource,
    encode_line,
    key_purpose,
    subject_token,
    unwrap,
    wrap,
)
from everthread.codec.seal import ID_BYTES, KEY_BYTES, NONCE_BYTES, RandomBytes, SubjectKey
from everthread.errors import KeyringError, StoreClosedError
from everthread.model.names import check_name
from everthread.stores.keyring_disk import (
    FileLock,
    append_at,
    check_directory,
    check_file,
    make_directory,
    overwrite,
    read_from,
    replace_file,
    sync_directory,
    sync_parents,
)
from everthread.stores.keyring_master import MasterKeeper, MasterKey


class _State:
    """One ``keys.jsonl`` as far as it has been read, and what has been decrypted of it."""

    def __init__(self, fd: int, table: KeyTable) -> None:
        # Held open, so that its inode number can't come to stand for another file meanwhile.
        self.fd = fd
        self.table = table
        self.seen = (0, 0, 0)
        self.durable_end = 0
        self.master = b""
        self.master_is_next = False
        self.token_key = b""
        self.opened: dict[bytes, SubjectKey] = {}
        self.tokens: dict[str, bytes] = {}

    # Bound here: at the end of the interpreter the module may be gone before the last keyring.
    def close(self, close_fd: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            close_fd(fd)

    # Nothing is lost by dropping a keyring that was not closed, so it may happen without a warning.
    __del__ = close

    def token(self, subject: str) -> bytes:
        token = self.tokens.get(subject)
        if token is None:
            token = self.tokens[subject] = subject_token(self.token_key, subject)
        return token

    def live_ids(self, subject: str) -> list[bytes]:
        return self.table.by_token.get(self.token(subject), [])

    def key(self, key_id: bytes) -> SubjectKey:
        key = self.opened.get(key_id)
        if key is None:
            token, wrapped = self.table.entries[key_id]
            plain = unwrap(self.master, wrapped, self.table.keyring_id, key_purpose(key_id, token))
            if plain is None:
                raise KeyringError(f"{self.table.where}: the key {key_id.hex()} is damaged")
            key = self.opened[key_id] = SubjectKey(key_id, plain)
        return key


class FileKeyring:
    """Keys of subjects in ``directory``, shared by any number of threads and processes of one machine.

    Nothing is created before the first ``key_for``. The master key comes from ``master`` if given, else from
    the environment variable ``EVERTHREAD_MASTER_KEY`` if set, else from the file ``master.key``; a keyring
    stays with the source it was created with. Every method raises :class:`KeyringError` for a missing or
    wrong master key, a damaged file, an I/O error, or modes that let others in,
    :class:`SchemaVersionError` for a newer format, :class:`StoreBusyError` if another process keeps the lock
    for ``lock_timeout_ms``, and :class:`StoreClosedError` after ``close``.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        master: MasterKey | None = None,
        random_bytes: RandomBytes = os.urandom,
        *,
        lock_timeout_ms: int = 10_000,
    ) -> None:
        self.directory = Path(os.path.abspath(directory))
        self._keys_path = self.directory / "keys.jsonl"
        self._masters = MasterKeeper(self.directory, master)
        self._random_source = random_bytes
        self._lock = FileLock(self.directory / "lock", lock_timeout_ms)
        self._mutex = threading.RLock()
        self._pid = os.getpid()
        self._state: _State | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"FileKeyring({str(self.directory)!r})"

    @property
    def epoch(self) -> int:
        """Grows whenever any process destroys keys. 0 while there is no keyring. Needs no master key."""
        with self._entered():
            state = self._current()
            return 0 if state is None else state.table.header.epoch

    @property
    def rotates_master(self) -> bool:
        """Whether the master key is a file of ours, which ``destroy`` replaces.

        If not, who holds an older copy of ``keys.jsonl`` and the same master key can read destroyed keys.
        """
        with self._entered():
            return self._source(self._current()) == "file"

    def key_for(self, subject: str) -> SubjectKey:
        """The live key of ``subject``. The first call creates it; it is on disk when this returns."""
        check_name(subject, "subject")
        with self._entered():
            state = self._unlocked()
            if state is None or not state.live_ids(subject):
                state = self._create_key(subject)
            self._make_durable(state)
            return state.key(state.live_ids(subject)[-1])

    def key_ids(self, subject: str) -> list[bytes]:
        """The ids of the live keys of ``subject``; empty if there is none. Creates nothing."""
        check_name(subject, "subject")
        with self._entered():
            state = self._unlocked()
            return [] if state is None else list(state.live_ids(subject))

    def key(self, key_id: bytes) -> SubjectKey | None:
        """The key with this id; ``None`` if this keyring doesn't hold it, or no longer."""
        with self._entered():
            state = self._current()
            if state is not None and not state.master and key_id in state.table.entries:
                state = self._unlocked()
            return state.key(key_id) if state is not None and key_id in state.table.entries else None

    def is_destroyed(self, key_id: bytes) -> bool:
        """Whether a key with this id was destroyed here. Needs no master key."""
        with self._entered():
            state = self._current()
            return state is not None and key_id in state.table.destroyed

    def destroy(self, subject: str) -> list[bytes]:
        """Destroy the keys of ``subject`` and return their ids; durable when it returns.

        The survivors are wrapped anew, under a fresh master key unless that comes from the environment. The
        link between subject and ids is gone afterwards: whoever needs the ids even if this process dies
        meanwhile asks for ``key_ids`` first. If it raises, call it again.
        """
        check_name(subject, "subject")
        with self._entered():
            if self._current() is None:
                return []
            with self._lock.held(exclusive=True):
                state = self._settled()
                if state is None:
                    return []
                key_ids = list(state.live_ids(subject))
                if key_ids:
                    self._rewrite(state, key_ids)
                    self._forget()
                return key_ids

    def close(self) -> None:
        """Forget every key held in memory. May be called twice."""
        with self._mutex:
            self._closed = True
            self._forget()

    def _create_key(self, subject: str) -> _State:
        make_directory(self.directory)
        with self._lock.held(exclusive=True):
            state = self._settled()
            if state is None:
                sync_parents(self.directory)
                self._rewrite(None, ())
                state = self._settled()
                assert state is not None
            # Looked up again: another process may have created it before this one got the lock.
            if not state.live_ids(subject):
                self._make_durable(state)
                self._append(state, subject)
                self._load()
                state.durable_end = state.table.end
            return state

    def _make_durable(self, state: _State) -> None:
        """Before a key is relied on: whoever wrote its line may have died without syncing it."""
        if state.durable_end < state.table.end:
            os.fsync(state.fd)
            sync_directory(self.directory)
            state.durable_end = state.table.end

    @contextmanager
    def _entered(self) -> Iterator[None]:
        if self._pid != os.getpid():
            # Another thread of the parent may have been inside at the fork: its locks are not ours.
            self._lock.forget_after_fork()
            self._mutex, self._pid = threading.RLock(), os.getpid()
        with self._mutex:
            if self._closed:
                raise StoreClosedError("the keyring was closed; open it again")
            try:
                yield
            except OSError as error:
                # What the kernel holds after a failed write is unknown, so it is read again.
                self._forget()
                raise KeyringError(f"the keyring {self.directory} can't be used: {error}") from error

    def _forget(self) -> None:
        if self._state is not None:
            self._state.close()
            self._state = None

    def _current(self) -> _State | None:
        """The state as the file stands now; ``None`` where no keyring has been created yet."""
        state = self._state
        try:
            found = os.stat(self._keys_path)
        except FileNotFoundError:
            # In a new keyring master.key appears last, so it alone means that the other file was lost.
            if state is None and not self._masters.in_place():
                return None
            if self._keys_path.exists():
                return self._current()
            raise KeyringError(
                f"{self._keys_path} is gone; put it back from its backup. No new keyring was made"
            ) from None
        if state is not None and state.seen == (found.st_dev, found.st_ino, found.st_size):
            return state
        with self._lock.held():
            return self._load()

    def _load(self) -> _State:
        check_directory(self.directory)
        check_file(self._keys_path)
        state = self._state
        fresh = _State(os.open(self._keys_path, os.O_RDONLY | os.O_CLOEXEC), KeyTable(str(self._keys_path)))
        found = os.fstat(fresh.fd)
        seen = (found.st_dev, found.st_ino, found.st_size)
        # Lines are only ever added to the same file, so there the new ones are enough.
        if state is None or state.seen[:2] != seen[:2] or state.table.end > found.st_size:
            self._forget()
            state = fresh
        # Until it has been read without fault it doesn't count.
        self._state = None
        state.table.read(read_from(fresh.fd, state.table.end))
        state.seen = seen
        if state is not fresh:
            fresh.close()
        self._state = state
        return state

    def _unlocked(self) -> _State | None:
        """The current state with its master and token key."""
        state = self._current()
        if state is None or state.master:
            return state
        # Under the lock, because a destruction going on replaces keys.jsonl and then master.key.
        with self._lock.held():
            state = self._current()
            if state is not None and not state.master:
                self._unlock(state)
            return state

    def _unlock(self, state: _State) -> None:
        table = state.table
        wrapped = bytes.fromhex(table.header.token_key)
        for master, is_next in self._masters.candidates(table.header):
            token_key = unwrap(master, wrapped, table.keyring_id, TOKEN_KEY_PURPOSE)
            if token_key is not None:
                state.master, state.master_is_next, state.token_key = master, is_next, token_key
                return
        raise KeyringError(
            f"the master key doesn't open the keyring {self.directory}: it is not the one that its keys were "
            "wrapped with. Nothing was changed"
        )

    def _settled(self) -> _State | None:
        """The unlocked state, after finishing what a crashed destruction left half done. Needs the lock."""
        state = self._unlocked()
        if state is not None and state.master_is_next:
            self._masters.put_in_place(state.master)
            state.master_is_next = False
        return state

    def _source(self, state: _State | None) -> MasterSource:
        return self._masters.source if state is None else state.table.header.master

    def _append(self, state: _State, subject: str) -> None:
        key = SubjectKey(self._random(ID_BYTES), self._random(KEY_BYTES))
        if key.key_id in state.table.entries or key.key_id in state.table.destroyed:
            raise KeyringError("the source of randomness repeats itself; nothing was written")
        token = state.token(subject)
        line = self._key_line(state.master, state.table.keyring_id, key, token)
        append_at(self._keys_path, state.table.next_line(line), state.table.end)

    def _rewrite(self, state: _State | None, destroyed: Sequence[bytes]) -> None:
        """Write all keys but the ``destroyed`` ones anew, or an empty keyring. Needs the exclusive lock."""
        check_directory(self.directory)
        keyring_id = self._random(ID_BYTES) if state is None else state.table.keyring_id
        token_key = self._random(KEY_BYTES) if state is None else state.token_key
        epoch = 0 if state is None else state.table.header.epoch
        source, current = self._source(state), b"" if state is None else state.master
        master, wrapped_master = self._masters.prepare(source, current, self._random(KEY_BYTES))
        header = Header(
            format=FORMAT,
            id=keyring_id.hex(),
            # The random part tells a keyring from an older copy of it that went on by itself.
            epoch=epoch + 1 + int.from_bytes(self._random(4), "big"),
            master=source,
            token_key=wrap(master, token_key, self._random(NONCE_BYTES), keyring_id, TOKEN_KEY_PURPOSE).hex(),
            wrapped_master=wrapped_master,
        )
        lines = [encode_line(header)]
        if state is not None:
            gone = state.table.destroyed | set(destroyed)
            lines += [encode_line(DestroyedLine(key_id.hex())) for key_id in sorted(gone)]
            for key_id, (token, _) in state.table.entries.items():
                if key_id not in gone:
                    lines.append(encode_line(self._key_line(master, keyring_id, state.key(key_id), token)))
        old = None if state is None else os.open(self._keys_path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            replace_file(self._keys_path, b"".join(lines))
            if source == "file":
                self._masters.put_in_place(master)
            if old is not None:
                overwrite(old)
        finally:
            if old is not None:
                os.close(old)

    def _key_line(self, master: bytes, keyring_id: bytes, key: SubjectKey, token: bytes) -> KeyLine:
        purpose = key_purpose(key.key_id, token)
        wrapped = wrap(master, key.key, self._random(NONCE_BYTES), keyring_id, purpose)
        return KeyLine(id=key.key_id.hex(), token=token.hex(), key=wrapped.hex())

    def _random(self, size: int) -> bytes:
        data = self._random_source(size)
        if len(data) != size:
            raise KeyringError(f"the source of randomness gave {len(data)} bytes, not {size}")
        return data
