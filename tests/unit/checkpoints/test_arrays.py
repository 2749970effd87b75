"""Arrays as data: only what describes an array becomes one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everthread
from everthread import Opaque
from everthread.checkpoints.arrays import ARRAY_TAG, register_arrays
from everthread.codec.lowering import pack
from everthread.codec.types import Code
from everthread.codec.values import lift, lower
from everthread.values import Tagged

register_arrays()


def read(tag: str, data: Any) -> Any:
    return lift(Tagged(Code.OBJECT, pack([tag, data])))


def test_a_described_array_is_read() -> None:
    assert read(ARRAY_TAG, {"dtype": "<i2", "shape": [2], "bytes": b"\1\0\2\0"}).tolist() == [1, 2]


@pytest.mark.parametrize(
    "data",
    [
        {"dtype": "|O", "shape": [1], "bytes": b"\1\2\3\4\5\6\7\10"},
        {"dtype": "|O8", "shape": [1], "bytes": b"\1\2\3\4\5\6\7\10"},
        {"dtype": "O", "shape": [1], "bytes": b"\1\2\3\4\5\6\7\10"},
        {"dtype": {"base": "|O8", "shape": [1]}, "shape": [1], "bytes": b"\1\2\3\4\5\6\7\10"},
        {
            "dtype": {"names": ["a"], "formats": ["|O8"], "offsets": [0], "itemsize": 8},
            "shape": [1],
            "bytes": b"\1\2\3\4\5\6\7\10",
        },
        {
            "dtype": {"names": ["a"], "formats": ["<i4"], "offsets": [100], "itemsize": 8},
            "shape": [1],
            "bytes": bytes(8),
        },
        {"dtype": "<i4", "shape": [3], "bytes": b"\0\0\0\0"},
        {"dtype": "<i4", "shape": [-1], "bytes": b"\0\0\0\0"},
        {"dtype": "<i4", "shape": [2**40, 2**40], "bytes": b""},
        {"dtype": "<i4", "shape": ["1"], "bytes": b"\0\0\0\0"},
        {"dtype": "i4,i4", "shape": [1], "bytes": bytes(8)},
        {"dtype": "os.system", "shape": [1], "bytes": bytes(8)},
        {"dtype": "<i4", "shape": [1], "bytes": "text"},
        {"dtype": "<i4", "shape": [1]},
        {"dtype": 5, "shape": [1], "bytes": b""},
        {"shape": [1]},
        [1, 2],
        None,
    ],
)
def test_what_describes_no_array_becomes_none(data: Any) -> None:
    for tag in (ARRAY_TAG, "numpy.float64"):
        assert type(read(tag, data)) is Opaque


def test_what_has_no_form_is_refused() -> None:
    masked = np.ma.masked_array([1, 2], mask=[True, False])
    refused = [masked, np.array([("a", None)], dtype=[("x", "U1"), ("y", "O")])]
    refused.append(np.array(["a", "b"], dtype=np.dtypes.StringDType()))
    for value in refused:
        with pytest.raises(everthread.InvalidValueError):
            lower({"x": value})


def test_an_array_with_objects_may_hold_whatever_can_be_stored() -> None:
    array = np.empty((2, 1), dtype=object)
    array[0, 0], array[1, 0] = np.arange(2), (1, {2})
    found = lift(lower(array))
    assert found.shape == (2, 1)
    assert found[0, 0].tolist() == [0, 1]
    assert found[1, 0] == (1, {2})


def test_the_callers_own_registration_stays() -> None:
    register_arrays()
    assert type(lift(lower(np.float64(1.5)))) is np.float64


def test_every_scalar_keeps_its_class() -> None:
    values = [
        cls(1)
        for cls in (np.int8, np.uint64, np.longlong, np.ulonglong, np.float16, np.float64, np.complex64)
    ]
    values += [
        np.bool_(True),
        np.longdouble(1.5),
        np.datetime64("2024-01-01T00:00", "ms"),
        np.timedelta64(5, "s"),
    ]
    for value in values:
        found = lift(lower(value))
        assert (type(found), found) == (type(value), value)
        assert found.dtype == value.dtype
