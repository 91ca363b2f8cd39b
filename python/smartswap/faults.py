"""Words for kernels that used memory which was not on the device."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

__all__ = ["Faults", "advice"]

# How the drivers say it.
_SIGNS = ("illegal memory access", "illegal address", "507015", "507011")


def advice(error: BaseException) -> str | None:
    """What to do about an access to memory that was away; None for all other errors."""
    if not isinstance(error, RuntimeError) or not any(sign in str(error) for sign in _SIGNS):
        return None
    return (
        "SmartSwap: a kernel used memory that was not on the device, or is wrong by itself: try it "
        "without smartswap. What no operator announces must be told: call the function that "
        "launches the kernel through smartswap.adapt_mem_func_wrapper, or take the tensors' "
        "data_ptr() in the step that uses them. CUDA_LAUNCH_BLOCKING=1 shows which call it is"
    )


class Faults:
    """Adds words to errors that end the script."""

    def __init__(self, adapter: ModuleType) -> None:
        self._adapter = adapter
        self._before: Callable[..., Any] | None = None
        self._shown: Callable[..., Any] | None = None

    def install(self, device: str) -> None:
        """Watches what ends the script. On the software device a fault ends the process."""
        if device == "host":
            if not faulthandler.is_enabled():
                # Says where it was. There may be no standard error to say it to.
                with suppress(RuntimeError, ValueError, OSError, AttributeError):
                    faulthandler.enable()
            # Above that one, which passes no address on.
            self._adapter.watch_faults()
        before = self._before = sys.excepthook

        def show(kind: Any, error: BaseException, trace: Any) -> None:
            before(kind, error, trace)
            words = advice(error)
            if words is not None:
                print(words, file=sys.stderr)

        self._shown = sys.excepthook = show

    def remove(self) -> None:
        """Watches no more."""
        self._adapter.ignore_faults()
        if self._before is not None and sys.excepthook is self._shown:
            sys.excepthook = self._before
        self._before = self._shown = None
