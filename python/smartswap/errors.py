"""The errors of SmartSwap. Each text says what is wrong and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "AlreadyEnabledError",
    "EnabledTooLateError",
    "IncompatibleTorchError",
    "NotBuiltError",
    "NotEnabledError",
    "SettingsError",
    "SmartSwapError",
    "UnsupportedOptimizerError",
    "nearest",
]


class SmartSwapError(Exception):
    """Any error of SmartSwap itself."""


class SettingsError(SmartSwapError, ValueError):
    """A setting or a flag that is unknown, malformed, or contradicts another."""


class AlreadyEnabledError(SmartSwapError, RuntimeError):
    """A second engine was asked for while one is open."""


class NotEnabledError(SmartSwapError, RuntimeError):
    """A call that needs the engine came while none is open."""


class EnabledTooLateError(SmartSwapError, RuntimeError):
    """The device already holds memory that SmartSwap did not give out."""


class IncompatibleTorchError(SmartSwapError, ImportError):
    """The installed PyTorch is not the one the package was built against."""


class NotBuiltError(SmartSwapError, ImportError):
    """The compiled part of the package is missing."""


class UnsupportedOptimizerError(SmartSwapError, TypeError):
    """An optimizer whose state cannot be placed."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A clause that names the known word most like `word`; empty if none is near."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if not close:
        bare = {name.lower().lstrip("-"): name for name in names}
        found = difflib.get_close_matches(word.lower().lstrip("-"), list(bare), n=1, cutoff=0.6)
        close = [bare[name] for name in found]
    return f"; did you mean {close[0]}?" if close else ""
