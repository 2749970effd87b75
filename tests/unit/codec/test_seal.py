"""Sealed values: what opens them, what doesn't, and that the bytes stay what they are."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys

import msgspec
import pytest
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from everthread.codec import records
from everthread.codec import seal as module
from everthread.codec.seal import (
    SUBJECTS_MAX,
    SealedRef,
    Sealer,
    SubjectKey,
    ValueIds,
    check_sealed,
    make_reference,
    open_sealed,
    read_reference,
    seal,
)
from everthread.codec.types import Code
from everthread.errors import (
    InvalidNameError,
    InvalidValueError,
    LimitError,
    SchemaVersionError,
    SealError,
    StateCorruptedError,
)
from everthread.limits import DEFAULT_LIMITS
from everthread.values import Tagged

VALUE_ID = bytes(range(16))
ANNA = SubjectKey(b"\x01" * 16, b"\x11" * 32)
BEN = SubjectKey(b"\x02" * 16, b"\x12" * 32)
CARA = SubjectKey(b"\x03" * 16, b"\x13" * 32)

# Written down once. Data sealed by any released version must open for ever.
PINNED_SEALED = bytes.fromhex(
    "016b86b273ff34fce19d6b804e8bae7e531938ef6271f50865f641a64a83f8ae83b6ae9ab4c2640f1692d26a7fa0122a1ce7a6"
    "68e9d8a7c0fedb0e5ab006a3b9776def72bbd5f948f5d8"
)
PINNED_REFERENCE = bytes.fromhex(
    "940192c41001010101010101010101010101010101c41002020202020202020202020202020202c410000102030405060708090a"
    "0b0c0d0e0fc4204a5b8c18aea1e781c799c91b31847b7f35242431de2f1ae157cf53eaa837d76a"
)


def counting_bytes():
    """A stand-in for randomness that gives the same bytes in every run."""
    counter = itertools.count()
    return lambda size: b"".join(
        hashlib.sha256(b"%d" % next(counter)).digest() for _ in range(-(-size // 32))
    )[:size]


def sealed_with(plaintext, *keys, tenant="tenant-a", value_id=VALUE_ID):
    sealed = seal(plaintext, keys, value_id, tenant)
    return sealed, read_reference(make_reference([key.key_id for key in keys], value_id, sealed))


def reference_to(sealed, *keys, value_id=VALUE_ID):
    """A reference with the right digest, as somebody who can rewrite the store would make it."""
    return SealedRef(tuple(key.key_id for key in keys), value_id, hashlib.sha256(sealed).digest())


@given(
    plaintext=st.one_of(
        st.binary(max_size=600), st.integers(0, 5000).map(lambda n: b"anna@example.org " * (n // 17))
    ),
    count=st.integers(1, 4),
    tenant=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
)
def test_round_trip(plaintext, count, tenant):
    keys = [SubjectKey(os.urandom(16), os.urandom(32)) for _ in range(count)]
    sealed, ref = sealed_with(plaintext, *keys, tenant=tenant)
    assert open_sealed(sealed, ref, keys, tenant) == plaintext
    assert open_sealed(sealed, ref, [CARA, *reversed(keys)], tenant) == plaintext
    assert ref.key_ids == tuple(key.key_id for key in keys)
    check_sealed(sealed, ref)


def test_pinned_bytes():
    keys = [ANNA, BEN]
    assert seal(b"anna@example.org", keys, VALUE_ID, "tenant-a", counting_bytes()) == PINNED_SEALED
    ref = read_reference(Tagged(30, PINNED_REFERENCE))
    assert make_reference(ref.key_ids, VALUE_ID, PINNED_SEALED) == Tagged(30, PINNED_REFERENCE)
    assert open_sealed(PINNED_SEALED, ref, keys, "tenant-a") == b"anna@example.org"


@pytest.mark.parametrize("plaintext", [b"short", b"long " * 1000])
def test_a_reader_written_from_the_documentation(plaintext):
    """Reads the layout as docs/internals/sealing.md tells it, without any code of ours."""
    sealed, ref = sealed_with(plaintext, ANNA, BEN, tenant="Zoë")
    assert sealed[0] == 1
    layer = sealed[1:]
    for key in (BEN, ANNA):
        name = "Zoë".encode()
        associated = b"everthread sealed value\0" + b"\x01" + len(name).to_bytes(2, "big") + name
        associated += key.key_id + VALUE_ID
        layer = AESGCM(key.key).decrypt(layer[:12], layer[12:], associated)
    packed = layer[1:]
    assert (packed if layer[0] == 0 else zstandard.ZstdDecompressor().decompress(packed)) == plaintext
    reference = msgspec.msgpack.decode(make_reference(ref.key_ids, VALUE_ID, sealed).data)
    assert reference == [1, [ANNA.key_id, BEN.key_id], VALUE_ID, hashlib.sha256(sealed).digest()]


def test_every_bit_flip_is_detected():
    sealed, ref = sealed_with(b"anna@example.org", ANNA, BEN)
    for bit in range(8 * len(sealed)):
        altered = bytearray(sealed)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StateCorruptedError):
            open_sealed(bytes(altered), ref, [ANNA, BEN], "tenant-a")
        # Nor does it help to put the digest of the altered bytes into the record.
        with pytest.raises((SealError, StateCorruptedError, SchemaVersionError)):
            open_sealed(bytes(altered), reference_to(bytes(altered), ANNA, BEN), [ANNA, BEN], "tenant-a")


def test_every_truncation_is_detected():
    sealed, ref = sealed_with(b"anna@example.org", ANNA)
    for size in range(len(sealed)):
        with pytest.raises(StateCorruptedError):
            open_sealed(sealed[:size], ref, [ANNA], "tenant-a")
        with pytest.raises((SealError, StateCorruptedError)):
            open_sealed(sealed[:size], reference_to(sealed[:size], ANNA), [ANNA], "tenant-a")
    with pytest.raises(StateCorruptedError):
        open_sealed(sealed + b"\0", ref, [ANNA], "tenant-a")


def test_damage_is_named():
    sealed, ref = sealed_with(b"x", ANNA)
    with pytest.raises(StateCorruptedError, match=VALUE_ID.hex()) as caught:
        check_sealed(sealed + b"x", ref)
    assert caught.value.where == f"sealed value {VALUE_ID.hex()}"


def test_the_digest_is_checked_before_any_key():
    sealed, ref = sealed_with(b"x", ANNA)
    with pytest.raises(StateCorruptedError):
        open_sealed(sealed[:-1] + bytes([sealed[-1] ^ 1]), ref, [], "tenant-a")


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_several_subjects_need_all_keys(missing):
    keys = [ANNA, BEN, CARA]
    sealed, ref = sealed_with(b"about all three", *keys)
    rest = [key for place, key in enumerate(keys) if place != missing]
    with pytest.raises(SealError, match=keys[missing].key_id.hex()):
        open_sealed(sealed, ref, rest, "tenant-a")
    forged = SubjectKey(keys[missing].key_id, os.urandom(32))
    with pytest.raises(SealError, match="different one"):
        open_sealed(sealed, ref, [*rest, forged], "tenant-a")
    # A reference that leaves the missing subject out doesn't open it either.
    with pytest.raises((SealError, StateCorruptedError)):
        open_sealed(sealed, reference_to(sealed, *rest), rest, "tenant-a")


def test_layers_open_only_in_their_order():
    sealed, _ = sealed_with(b"x", ANNA, BEN)
    with pytest.raises(SealError):
        open_sealed(sealed, reference_to(sealed, BEN, ANNA), [ANNA, BEN], "tenant-a")


def test_associated_data_binds_tenant_value_and_key():
    sealed, ref = sealed_with(b"x", ANNA)
    for tenant in ("tenant-b", "", "tenant-a ", "Tenant-a"):
        with pytest.raises(SealError, match="tenant"):
            open_sealed(sealed, ref, [ANNA], tenant)
    with pytest.raises(SealError):
        open_sealed(sealed, reference_to(sealed, ANNA, value_id=b"v" * 16), [ANNA], "tenant-a")
    renamed = SubjectKey(b"\x09" * 16, ANNA.key)
    with pytest.raises(SealError):
        open_sealed(sealed, reference_to(sealed, renamed), [renamed], "tenant-a")
    assert open_sealed(sealed, ref, [ANNA], "tenant-a") == b"x"


def test_equal_values_never_look_equal():
    first, second = (seal(b"same" * 100, [ANNA], VALUE_ID, "t") for _ in range(2))
    assert first != second
    assert b"same" not in first


def test_compression_is_used_where_it_helps():
    repetitive, random = b"the same words " * 300, os.urandom(4096)
    overhead = 1 + 12 + 1 + 16
    assert len(seal(repetitive, [ANNA], VALUE_ID, "t")) < 100
    assert len(seal(random, [ANNA], VALUE_ID, "t")) == len(random) + overhead
    assert len(seal(b"", [ANNA], VALUE_ID, "t")) == overhead
    assert len(seal(b"", [ANNA, BEN], VALUE_ID, "t")) == overhead + 28


def test_unpacking_is_capped():
    bomb = bytes(1_000_000)
    sealed, ref = sealed_with(bomb, ANNA)
    assert len(sealed) < 1000
    assert open_sealed(sealed, ref, [ANNA], "tenant-a", plaintext_bytes_max=len(bomb)) == bomb
    with pytest.raises(LimitError, match="1,000,000"):
        open_sealed(sealed, ref, [ANNA], "tenant-a", plaintext_bytes_max=len(bomb) - 1)
    sealed, ref = sealed_with(os.urandom(1000), ANNA)
    with pytest.raises(LimitError):
        open_sealed(sealed, ref, [ANNA], "tenant-a", plaintext_bytes_max=999)
    with pytest.raises(LimitError):
        seal(b"12345", [ANNA], VALUE_ID, "t", plaintext_bytes_max=4)


def sealed_raw(inner):
    """Seal bytes that our own writer never produces."""
    nonce = bytes(12)
    sealed = (
        b"\x01"
        + nonce
        + AESGCM(ANNA.key).encrypt(nonce, inner, module._context("t") + ANNA.key_id + VALUE_ID)
    )
    return sealed, reference_to(sealed, ANNA)


def test_authentic_bytes_that_make_no_sense_are_damage():
    frame = zstandard.ZstdCompressor().compress(b"x" * 1000)
    endless = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(10_000_000))
    lying = bytearray(zstandard.ZstdCompressor().compress(b"x" * 300))
    lying[5] ^= 1  # in the declared size
    for inner in (b"", b"\x02abc", b"\x01", b"\x01abc", b"\x01" + frame[:-1], b"\x01" + frame + b"x"):
        with pytest.raises(StateCorruptedError):
            open_sealed(*sealed_raw(inner), [ANNA], "t")
    for inner in (b"\x01" + endless, b"\x01" + bytes(lying)):
        with pytest.raises(StateCorruptedError):
            open_sealed(*sealed_raw(inner), [ANNA], "t")


def test_a_frame_that_declares_petabytes_allocates_nothing():
    huge = b"\x28\xb5\x2f\xfd" + b"\xe0" + (1 << 50).to_bytes(8, "little") + b"\x01\x00\x00"
    with pytest.raises(LimitError):
        open_sealed(*sealed_raw(b"\x01" + huge), [ANNA], "t")


def test_newer_formats_are_told_apart_from_damage():
    newer = b"\x02" + os.urandom(40)
    with pytest.raises(SchemaVersionError) as caught:
        open_sealed(newer, reference_to(newer, ANNA), [ANNA], "t")
    assert (caught.value.found, caught.value.supported) == (2, 1)
    with pytest.raises(SchemaVersionError):
        read_reference(Tagged(30, msgspec.msgpack.encode([2, "something", "else"])))
    for nothing in (b"", b"\x00" + os.urandom(40)):
        with pytest.raises(StateCorruptedError):
            check_sealed(nothing, reference_to(nothing, ANNA))


@pytest.mark.parametrize(
    "parts",
    [
        None,
        [],
        {},
        [1],
        ["1", [b"k" * 16], b"v" * 16, b"d" * 32],
        [True, [b"k" * 16], b"v" * 16, b"d" * 32],
        [0, [b"k" * 16], b"v" * 16, b"d" * 32],
        [-1, [b"k" * 16], b"v" * 16, b"d" * 32],
        [1, [], b"v" * 16, b"d" * 32],
        [1, b"k" * 16, b"v" * 16, b"d" * 32],
        [1, [b"k" * 15], b"v" * 16, b"d" * 32],
        [1, ["k" * 16], b"v" * 16, b"d" * 32],
        [1, [[]], b"v" * 16, b"d" * 32],
        [1, [b"k" * 16, b"k" * 16], b"v" * 16, b"d" * 32],
        [1, [i.to_bytes(16, "big") for i in range(SUBJECTS_MAX + 1)], b"v" * 16, b"d" * 32],
        [1, [b"k" * 16], b"v" * 17, b"d" * 32],
        [1, [b"k" * 16], b"v" * 16, b"d" * 31],
        [1, [b"k" * 16], b"v" * 16, None],
        [1, [b"k" * 16], b"v" * 16, b"d" * 32, 0],
    ],
)
def test_damaged_references(parts):
    with pytest.raises(StateCorruptedError):
        read_reference(Tagged(30, msgspec.msgpack.encode(parts)))


@given(st.binary(max_size=100))
def test_any_bytes_as_a_reference(data):
    with pytest.raises((StateCorruptedError, SchemaVersionError)):
        read_reference(Tagged(30, data))


def test_deep_nesting_in_a_reference():
    with pytest.raises(StateCorruptedError):
        read_reference(Tagged(30, b"\x91" * 200_000 + b"\xc0"))


def test_every_bit_flip_of_a_reference_is_seen():
    original = read_reference(Tagged(30, PINNED_REFERENCE))
    for bit in range(8 * len(PINNED_REFERENCE)):
        altered = bytearray(PINNED_REFERENCE)
        altered[bit // 8] ^= 1 << bit % 8
        try:
            ref = read_reference(Tagged(30, altered))
        except (StateCorruptedError, SchemaVersionError):
            continue
        assert ref != original
        with pytest.raises((StateCorruptedError, SealError)):
            open_sealed(PINNED_SEALED, ref, [ANNA, BEN], "tenant-a")


def test_another_type_code_is_no_reference():
    with pytest.raises(StateCorruptedError, match="29"):
        read_reference(Tagged(29, PINNED_REFERENCE))


def test_what_seal_refuses():
    with pytest.raises(SealError, match="at least one"):
        seal(b"x", [], VALUE_ID, "t")
    with pytest.raises(SealError, match="twice"):
        seal(b"x", [ANNA, ANNA], VALUE_ID, "t")
    with pytest.raises(SealError, match="randomness"):
        seal(b"x", [ANNA], VALUE_ID, "t", lambda size: b"")
    with pytest.raises(InvalidValueError, match="value id"):
        seal(b"x", [ANNA], b"short", "t")
    with pytest.raises(InvalidNameError):
        seal(b"x", [ANNA], VALUE_ID, "\ud800")
    many = [SubjectKey(i.to_bytes(16, "big"), bytes(32)) for i in range(SUBJECTS_MAX + 1)]
    with pytest.raises(LimitError):
        seal(b"x", many, VALUE_ID, "t")
    with pytest.raises(SealError):
        make_reference([], VALUE_ID, b"")
    sealed, ref = sealed_with(b"x", *many[:-1])
    assert open_sealed(sealed, ref, many, "tenant-a") == b"x"


def test_keys_are_checked_and_never_shown():
    with pytest.raises(InvalidValueError):
        SubjectKey(b"k" * 15, bytes(32))
    with pytest.raises(InvalidValueError):
        SubjectKey(b"k" * 16, bytes(16))
    key = SubjectKey(b"\xab" * 16, b"secretsecretsecretsecretsecret!!")
    for text in (repr(key), str(key), f"{[key]}", repr(key.__rich_repr__())):
        assert "secret" not in text
        assert b"secret".hex() not in text
        assert "ab" * 16 in text
    with pytest.raises(AttributeError):
        key.key = bytes(32)


def test_value_ids_grow_and_never_repeat():
    """Whatever the clock does: they tell no more than the record around them does, and each stands alone."""
    clock = iter([1_800_000_000_000_000, 1_800_000_000_000_000, 5, 1_800_000_000_000_001, 2**60, 2**60])
    ids = ValueIds(lambda: next(clock), os.urandom)
    made = [ids.new() for _ in range(6)]
    values = [value for value, _ in made]
    assert values == sorted(values)
    assert len({value[:8] for value in values}) == len({value[8:] for value in values}) == 6
    assert {len(value) for value in values} == {16}
    assert len({nonce for _, nonce in made}) == 6
    assert {len(nonce) for _, nonce in made} == {12}
    assert ValueIds(lambda: 1, bytes).new() == (b"\0" * 6 + b"\x01" + b"\0" * 9, bytes(12))
    with pytest.raises(SealError):
        ValueIds(lambda: 1, lambda size: b"").new()


def test_what_is_sealed_for_one_is_what_is_sealed_for_some():
    key, sealer = SubjectKey(b"k" * 16, b"s" * 32), Sealer("tenant", lambda: 1, os.urandom)
    for plain in (b"", b"text", b"long " * 1_000):
        value_id, sealed, tagged = sealer.seal(plain, key)
        assert sealed == seal(plain, [key], value_id, "tenant", lambda size, nonce=sealed[1:13]: nonce)
        assert tagged == make_reference([key.key_id], value_id, sealed)
        assert open_sealed(sealed, read_reference(tagged), [key], "tenant") == plain


def test_a_reference_alone_is_encoded_as_among_others():
    _, _, tagged = Sealer("tenant", lambda: 1, os.urandom).seal(b"text", SubjectKey(b"k" * 16, b"s" * 32))
    for value in (tagged, Tagged(Code.SEALED, tagged.data), Tagged(Code.TUPLE, b"\x90")):
        for ops in (
            [(0, ("name",), value)],
            [(3, ("name",), value)],
            [(1, ("name",)), (0, ("name",), value)],
        ):
            for logs in ([], [["log", 0, 0, 1, 0, b"1234"]]):
                encoded = records.encode_change(ops, logs, None, DEFAULT_LIMITS)
                assert encoded == records.write_change(records.Change(ops, logs))


def test_importing_is_cheap():
    code = (
        "import sys, everthread.codec.seal, everthread.keyring.keyring;"
        "print([name for name in ('cryptography', 'zstandard') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
