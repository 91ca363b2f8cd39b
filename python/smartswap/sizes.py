"""Sizes of memory: from text to bytes and back."""

from __future__ import annotations

import math
import re

from .errors import SettingsError

__all__ = ["format_size", "parse_percent", "parse_size"]

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "t": 1 << 40,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*")
_BYTES_MAX = 1 << 62


def parse_size(size: str | int | float, name: str = "size") -> int:
    """The number of bytes that `size` means, at least 1.

    A text has a unit: `24GiB` and `24G` are powers of 1024, `24GB` is a power of 1000, and a
    number alone is bytes. `name` is what the error calls the setting.
    """
    if isinstance(size, bool) or not isinstance(size, (str, int, float)):
        raise SettingsError(f"{name} is a size such as '24GiB' or a number of bytes, not {size!r}")
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        unit = match.group(2).lower() if match else ""
        if match is None or unit not in _UNITS:
            raise SettingsError(f"{name}: '{size}' is not a size; write 24GiB, 512MiB or bytes")
        n_bytes = float(match.group(1)) * _UNITS[unit]
        if match.group(1).isdigit():
            n_bytes = int(match.group(1)) * _UNITS[unit]
    else:
        n_bytes = size
    if not math.isfinite(n_bytes) or n_bytes > _BYTES_MAX:
        raise SettingsError(f"{name}: {size!r} is too large; write a size such as 24GiB")
    if n_bytes < 1:
        raise SettingsError(f"{name} must be more than 0; leave it out for all that is free")
    return int(n_bytes)


def parse_percent(text: str | int | float, name: str = "size") -> float | None:
    """The percentage that a text such as `60%` means, above 0 and at most 100; None for others."""
    if not isinstance(text, str) or not text.rstrip().endswith("%"):
        return None
    try:
        percent = float(text.rstrip()[:-1])
    except ValueError:
        percent = math.nan
    if not 0 < percent <= 100:
        raise SettingsError(f"{name}: '{text}' is not a percentage; write 60% or 24GiB")
    return percent


def format_size(n_bytes: int | float) -> str:
    """A size for people, such as `1.50 GiB`."""
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
