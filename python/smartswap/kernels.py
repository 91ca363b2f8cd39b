"""Kernels that scripts register: for PyTorch's own operators, and for operators of their own."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload
from torch.library import Library

from .patches import Patches

__all__ = ["RegisteredKernels"]

# From PyTorch 2.14 on. None before.
_DIRECT = "_enable_pyobj_dispatch"


class RegisteredKernels:
    """Has the adapter see what scripts register.

    A kernel for one of PyTorch's own operators may use any tensor, and the adapter need not look
    into operators until there is one. Those that were there before, it finds by itself.

    An operator of `torch.library.custom_op` is called past the dispatcher from PyTorch 2.14 on,
    and who watches the dispatcher sees only what its kernel calls. Here it goes by the dispatcher,
    as before.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._patches = Patches()
        self._direct: weakref.WeakSet[OpOverload] = weakref.WeakSet()

    def install(self) -> None:
        """Begins to watch `torch.library`."""
        register = Library.impl

        @functools.wraps(register)
        def impl(library: Any, *args: Any, **kwargs: Any) -> Any:
            if library.ns == "aten":
                self._adapter.note_foreign_kernel()
            return register(library, *args, **kwargs)

        self._patches.replace(Library, "impl", impl)
        if hasattr(OpOverload, _DIRECT):
            self._end_direct_calls()

    def remove(self) -> None:
        """Watches no more. One may be registered unseen from now on."""
        self._patches.restore()
        for operator in self._direct:
            operator._enable_pyobj_dispatch()
        self._direct.clear()
        self._adapter.note_foreign_kernel()

    def _end_direct_calls(self) -> None:
        """Has operators go by the dispatcher: those that there are, and those to come."""
        choose = OpOverload._enable_pyobj_dispatch
        for operator in [one._opoverload for one in list(OPDEFS.values())]:
            if operator._is_pyobj_dispatcher_enabled():
                choose(operator, False)
                self._direct.add(operator)

        @functools.wraps(choose)
        def note(operator: OpOverload, enabled: bool = True) -> None:
            (self._direct.add if enabled else self._direct.discard)(operator)

        self._patches.replace(OpOverload, _DIRECT, note)
