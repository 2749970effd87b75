"""Bounds on what a value may be, and the policies for values that formats disagree on."""

from __future__ import annotations

from typing import Literal

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """All configurable; each violation raises a ``LimitError`` that names the path, and for the last two an
    ``InvalidValueError``, which it is a kind of.

    ``nan``: ``"keep"`` stores NaN and the infinities bit by bit, ``"refuse"`` raises.
    ``surrogates``: ``"refuse"`` raises on text that isn't valid Unicode, ``"keep"`` stores it as it is.
    """

    payload_bytes_max: int = 64 * 1024 * 1024
    depth_max: int = 100
    nodes_max: int = 1_000_000
    integer_digits_max: int = 4_300
    nan: Literal["keep", "refuse"] = "keep"
    surrogates: Literal["refuse", "keep"] = "refuse"


DEFAULT_LIMITS = Limits()
