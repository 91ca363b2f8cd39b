"""Kernels that scripts register for PyTorch's own operators, which may use any tensor."""

from __future__ import annotations

import functools
from typing import Any

from torch.library import Library

from .patches import Patches

__all__ = ["ForeignKernels"]


class ForeignKernels:
    """Tells the adapter when one is registered, as it need not look into operators until then.

    Those that were there before, it finds by itself.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._patches = Patches()

    def install(self) -> None:
        """Begins to watch `torch.library`."""
        register = Library.impl

        @functools.wraps(register)
        def impl(library: Any, *args: Any, **kwargs: Any) -> Any:
            if library.ns == "aten":
                self._adapter.note_foreign_kernel()
            return register(library, *args, **kwargs)

        self._patches.replace(Library, "impl", impl)

    def remove(self) -> None:
        """Watches no more. One may be registered unseen from now on."""
        self._patches.restore()
        self._adapter.note_foreign_kernel()
