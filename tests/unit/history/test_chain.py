from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from everthread.errors import InvalidNameError, InvalidValueError, SchemaVersionError, UsageError
from everthread.history import chain

UID = bytes(range(16))
SECRET = bytes(range(32))
HASH = hashlib.sha256(b"a version").digest()


def digests(n: int) -> list[bytes]:
    return [chain.record_digest(b"record %d" % i) for i in range(n)]


def test_digest_and_link_are_plain_sha256() -> None:
    assert chain.record_digest(b"body") == hashlib.sha256(b"body").digest()
    previous, digest = chain.genesis(UID), chain.record_digest(b"body")
    assert chain.link(previous, digest) == hashlib.sha256(previous + digest).digest()


def test_the_chain_is_a_promise_across_releases() -> None:
    """These hashes stand in stores and anchors: a change here makes every one of them unverifiable."""
    start = chain.genesis(UID)
    assert start == hashlib.sha256(b"everthread/genesis/1\0" + UID).digest()
    assert chain.branch(HASH, UID) == hashlib.sha256(b"everthread/branch/1\0" + HASH[:16] + UID).digest()
    assert chain.branch(HASH[:16], UID) == chain.branch(HASH, UID)
    assert chain.version_id(3, HASH) == "3-" + HASH.hex()[:24]


def test_starts_differ_by_line_and_by_kind() -> None:
    starts = {
        chain.genesis(UID),
        chain.genesis(UID + b"\0"),
        chain.branch(HASH, UID),
        chain.branch(HASH, UID + b"\0"),
        chain.branch(chain.record_digest(b""), UID),
        chain.genesis(HASH + UID),
    }
    assert len(starts) == 6


def test_branch_refuses_a_parent_that_is_no_hash() -> None:
    with pytest.raises(InvalidValueError):
        chain.branch(HASH + b"x", UID)


def test_verify_follows_the_links() -> None:
    reached = start = chain.genesis(UID)
    for digest in digests(5):
        reached = chain.link(reached, digest)
    assert chain.verify_chain(start, iter(digests(5))) == reached
    assert chain.verify_chain(start, []) == start


@given(st.integers(2, 12), st.data())
def test_every_change_of_the_past_shows(n: int, data: st.DataObject) -> None:
    start, recorded = chain.genesis(UID), digests(n)
    reached = chain.verify_chain(start, recorded)
    at = data.draw(st.integers(0, n - 2))
    altered = recorded.copy()
    altered[at] = chain.record_digest(b"forged")
    swapped = recorded.copy()
    swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
    removed = recorded[:at] + recorded[at + 1 :]
    inserted = [*recorded[:at], chain.record_digest(b"forged"), *recorded[at:]]
    for forged in (altered, swapped, removed, inserted, recorded[:-1]):
        assert chain.verify_chain(start, forged) != reached
    assert chain.verify_chain(chain.genesis(b"another line"), recorded) != reached


@pytest.mark.parametrize("digest", [b"", HASH[:-1], HASH + HASH, HASH.hex(), None])
def test_verify_refuses_what_is_no_digest(digest: object) -> None:
    with pytest.raises(InvalidValueError):
        chain.verify_chain(chain.genesis(UID), [digest])  # type: ignore[list-item]


@given(st.integers(0, chain.SEQ_MAX), st.binary(min_size=32, max_size=32))
def test_version_ids_round_trip(seq: int, hash: bytes) -> None:
    assert chain.parse_version_id(chain.version_id(seq, hash)) == (seq, hash.hex()[:24])


DIGITS = "0123456789abcdef01234567"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17",
        "17-",
        f"-{DIGITS}",
        f"017-{DIGITS}",
        f"-1-{DIGITS}",
        f"+1-{DIGITS}",
        f"1_0-{DIGITS}",
        f"1-{DIGITS.upper()}",
        f"1-{DIGITS[:-1]}",
        f"1-{DIGITS}0",
        f"1-{DIGITS}\n",
        f" 1-{DIGITS}",
        f"٣-{DIGITS}",
        f"9999999999999999999-{DIGITS}",
        "1" * 100_000,
        "'; drop table versions",
        None,
        7,
        b"1-" + DIGITS.encode(),
    ],
)
def test_nonsense_is_no_version_id(text: object) -> None:
    with pytest.raises(UsageError) as raised:
        chain.parse_version_id(text)  # type: ignore[arg-type]
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("private_key", [SECRET, Ed25519PrivateKey.from_private_bytes(SECRET)])
def test_a_signed_head_verifies(private_key: bytes | Ed25519PrivateKey) -> None:
    head = chain.sign_head("invoice-bot", 17, HASH, private_key)
    public = Ed25519PrivateKey.from_private_bytes(SECRET).public_key()
    assert head.public_key == public.public_bytes_raw()
    assert head.verify(public) is True
    assert head.verify(public.public_bytes_raw()) is True
    assert head.version_id == chain.version_id(17, HASH)


def test_what_is_signed_is_a_promise_across_releases() -> None:
    """Anchors outlive the code that made them."""
    name = "fäden".encode()
    covered = b"everthread/head/1\0" + b"\0\0\0\x06" + name + b"\0\0\0\0\0\0\0\x11" + HASH
    expected = Ed25519PrivateKey.from_private_bytes(SECRET).sign(covered)
    assert chain.sign_head("fäden", 17, HASH, SECRET).signature == expected


def test_a_signature_covers_every_field() -> None:
    head = chain.sign_head("a", 17, HASH, SECRET)
    other = chain.sign_head("a", 17, HASH, bytes(32))
    fields = {
        "thread": "b",
        "seq": 18,
        "hash": chain.record_digest(b"forged"),
        "signature": other.signature,
        "public_key": other.public_key,
    }
    plain = {name: getattr(head, name) for name in fields}
    assert chain.SignedHead(**plain).verify(head.public_key)
    for name, value in fields.items():
        assert chain.SignedHead(**{**plain, name: value}).verify(head.public_key) is False, name
    # A forger who signs with a key of their own passes only with that key.
    assert other.verify(other.public_key) is True
    assert other.verify(head.public_key) is False


@given(st.integers(0, 511))
def test_every_bit_of_the_signature_counts(bit: int) -> None:
    head = chain.sign_head("a", 17, HASH, SECRET)
    damaged = bytearray(head.signature)
    damaged[bit // 8] ^= 1 << bit % 8
    assert chain.SignedHead("a", 17, HASH, bytes(damaged), head.public_key).verify(head.public_key) is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("thread", ""),
        ("seq", -1),
        ("seq", 2**80),
        ("hash", b""),
        ("signature", b""),
        ("signature", None),
        ("thread", 7),
    ],
)
def test_a_malformed_head_is_false_not_an_error(name: str, value: object) -> None:
    head = chain.sign_head("a", 17, HASH, SECRET)
    plain = {field: getattr(head, field) for field in head.__struct_fields__}
    assert chain.SignedHead(**{**plain, name: value}).verify(head.public_key) is False


@pytest.mark.parametrize("key", [b"", bytes(31), "00" * 32, None])
def test_what_is_no_key_is_refused_without_showing_it(key: object) -> None:
    head = chain.sign_head("a", 17, HASH, SECRET)
    with pytest.raises(InvalidValueError):
        head.verify(key)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError) as raised:
        chain.sign_head("a", 17, HASH, key)  # type: ignore[arg-type]
    assert not key or repr(key) not in str(raised.value)


def test_signing_refuses_what_is_no_head() -> None:
    with pytest.raises(InvalidNameError):
        chain.sign_head("", 1, HASH, SECRET)
    for seq in (-1, 2**63, True, "1"):
        with pytest.raises(InvalidValueError):
            chain.sign_head("a", seq, HASH, SECRET)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError):
        chain.sign_head("a", 1, HASH[:5], SECRET)


@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40),
    st.integers(0, chain.SEQ_MAX),
)
def test_heads_round_trip_as_one_line_of_json(thread: str, seq: int) -> None:
    head = chain.sign_head(thread, seq, HASH, SECRET)
    text = head.to_json()
    # The characters JSON itself breaks lines at; others, such as U+2028, are content.
    assert not {"\n", "\r"} & set(text)
    again = chain.SignedHead.from_json(text)
    assert again == head
    assert chain.SignedHead.from_json(text.encode()) == head
    assert again.verify(head.public_key)


def head_json(**changes: object) -> str:
    fields = json.loads(chain.sign_head("a", 17, HASH, SECRET).to_json())
    fields.update(changes)
    return json.dumps({name: value for name, value in fields.items() if value is not ...})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "[" * 100_000,
        head_json(thread=7),
        head_json(thread=""),
        head_json(seq="17"),
        head_json(seq=True),
        head_json(seq=1.5),
        head_json(seq=-1),
        head_json(hash="00"),
        head_json(hash=None),
        head_json(signature="zz"),
        head_json(public_key=...),
        head_json(everthread_head=...),
        head_json(everthread_head="1"),
        head_json(everthread_head=True),
        head_json(everthread_head=0),
    ],
)
def test_other_texts_are_no_signed_head(text: str) -> None:
    with pytest.raises(InvalidValueError):
        chain.SignedHead.from_json(text)


def test_unknown_fields_are_tolerated_and_newer_formats_named() -> None:
    assert chain.SignedHead.from_json(head_json(note="from the future")).seq == 17
    with pytest.raises(SchemaVersionError) as raised:
        chain.SignedHead.from_json(head_json(everthread_head=2))
    assert (raised.value.found, raised.value.supported) == (2, 1)


def test_cryptography_is_imported_only_for_signing() -> None:
    code = "import sys, everthread.history.chain as c; c.genesis(b'x'); print('cryptography' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_who_gives_a_label_is_told_how_labels_are_found() -> None:
    with pytest.raises(InvalidValueError, match=r"Of a label: thread\.at\(label\)\.version"):
        chain.parse_version_id("asked")
