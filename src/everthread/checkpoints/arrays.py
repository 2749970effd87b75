"""NumPy arrays and scalars, for whoever has NumPy.

NumPy is never imported here: an object can hold an array only once its owner has imported it.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any, Final

from everthread.codec.types import register, shape_of
from everthread.errors import InvalidValueError

ARRAY_TAG: Final = "numpy.ndarray"

#: Scalars that are more than the Python number they resemble: they have a width.
_SCALARS: Final = """bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 longlong ulonglong float16 float32
    float64 longdouble complex64 complex128 clongdouble datetime64 timedelta64""".split()

#: The simple types of elements: numbers, texts, bytes and times. Objects are stored one by one.
_SIMPLE: Final = re.compile(r"[<>|=][biufcSUVmM]\d{1,9}(\[\d{0,9}[A-Za-zμ]{1,7}\])?")


def register_arrays() -> None:
    """Let arrays and scalars be stored, if NumPy is in use. A registration of the caller's own stays."""
    numpy = _numpy()
    if numpy is None or shape_of(numpy.ndarray) is not None:
        return
    for name in _SCALARS:
        cls = getattr(numpy, "bool_" if name == "bool" else name, None)
        if cls is not None and shape_of(cls) is None:
            register(cls, tag=f"numpy.{name}", to_data=_scalar_to_data, from_data=_scalar_reader(cls))
    # Last: it tells that the others are done.
    register(numpy.ndarray, tag=ARRAY_TAG, to_data=_array_to_data, from_data=_array_from_data)


def is_array(value: Any) -> bool:
    numpy = _numpy()
    return numpy is not None and isinstance(value, numpy.ndarray)


def _numpy() -> Any:
    numpy = sys.modules.get("numpy")
    # It may be half way through its import, in another thread.
    return numpy if hasattr(numpy, "ndarray") and hasattr(numpy, "timedelta64") else None


def _array_to_data(array: Any) -> dict[str, Any]:
    data = {"dtype": _describe(array.dtype), "shape": list(array.shape)}
    if array.dtype.kind == "O":
        return {**data, "items": list(array.reshape(-1))}
    return {**data, "bytes": array.tobytes()}


def _array_from_data(data: Any) -> Any:
    numpy = _numpy()
    shape = tuple(data["shape"])
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError("the shape of an array is made of numbers")
    if data["dtype"] == "|O":
        items = data["items"]
        array = numpy.empty(len(items), dtype=object)
        for index, item in enumerate(items):
            array[index] = item
        return array.reshape(shape)
    dtype = _rebuild(data["dtype"])
    content = data["bytes"]
    if type(content) is not bytes or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError("the bytes of an array don't fit its shape")
    if not content:
        return numpy.empty(shape, dtype=dtype)
    return numpy.frombuffer(content, dtype=dtype).reshape(shape).copy()


def _scalar_to_data(scalar: Any) -> dict[str, Any]:
    return {"dtype": _describe(scalar.dtype), "bytes": scalar.tobytes()}


def _scalar_reader(cls: Any) -> Callable[[Any], Any]:
    own = _numpy().dtype(cls)

    def from_data(data: Any) -> Any:
        (value,) = _array_from_data({"dtype": data["dtype"], "shape": [1], "bytes": data["bytes"]})
        if type(value) is not cls:
            # Two classes may share one layout, as int64 and longlong do; the tag says which one it was.
            if data["dtype"] != own.str:
                raise ValueError("the type of a scalar doesn't fit its class")
            (value,) = _numpy().frombuffer(data["bytes"], dtype=own)
        return value

    return from_data


def _describe(dtype: Any) -> Any:
    """The type of the elements as data: text for a simple one, its parts for a compound one."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": _describe(base), "shape": list(shape)}
    if dtype.names is not None:
        if dtype.hasobject:
            raise InvalidValueError("an array of records that hold objects can't be stored; use a list")
        parts = [dtype.fields[name] for name in dtype.names]
        return {
            "names": list(dtype.names),
            "formats": [_describe(part[0]) for part in parts],
            "offsets": [part[1] for part in parts],
            "itemsize": dtype.itemsize,
        }
    if dtype.kind != "O" and not _SIMPLE.fullmatch(dtype.str):
        raise InvalidValueError(f"an array of {dtype} can't be stored")
    return str(dtype.str)


def _rebuild(described: Any) -> Any:
    """The type that :func:`_describe` described; raises for everything else, objects above all."""
    numpy = _numpy()
    if type(described) is str:
        if not _SIMPLE.fullmatch(described):
            raise ValueError("not a simple type of elements")
        return numpy.dtype(described)
    if "base" in described:
        return numpy.dtype((_rebuild(described["base"]), tuple(described["shape"])))
    return numpy.dtype({**described, "formats": [_rebuild(part) for part in described["formats"]]})
