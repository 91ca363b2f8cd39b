"""Extension modules of others over PyTorch: each call of their functions becomes one op.

Functions that are bound to Python directly, and are not operators of the dispatcher, take tensors
that nobody sees: kernels of TransformerEngine, apex, DeepSpeed. Whatever module links to PyTorch
is changed right after its import, wherever it is imported from.
"""

from __future__ import annotations

import functools
import mmap
import sys
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from types import BuiltinFunctionType, ModuleType
from typing import Any

from . import _native
from .patches import Patches
from .pointers import storage_address
from .tensors import tensors_in

__all__ = ["Extensions"]

# PyTorch's own functions are operators or read tensors through them.
_OWN = ("torch", "smartswap")
_LIBRARIES = (b"libtorch", b"libc10")
# How an op uses a tensor: written if fresh, else read and written; written if fresh, else not used.
_UNKNOWN, _OUTPUT = 3, 4


def _links_to_torch(path: str) -> bool:
    """Whether a shared library names one of PyTorch's libraries."""
    try:
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return any(content.find(name) >= 0 for name in _LIBRARIES)
    except (OSError, ValueError):
        return False


class Extensions:
    """Makes ops of the functions and methods of extension modules."""

    def __init__(self, adapter: ModuleType) -> None:
        self._adapter = adapter
        self._patches = Patches()

    def install(self) -> None:
        """Changes what is imported already, and watches for the rest."""
        if self._patches:
            return
        execute = ExtensionFileLoader.exec_module

        @functools.wraps(execute)
        def exec_module(loader: ExtensionFileLoader, module: ModuleType) -> None:
            execute(loader, module)
            self._change(module)

        self._patches.replace(ExtensionFileLoader, "exec_module", exec_module)
        for module in list(sys.modules.values()):
            if isinstance(getattr(module, "__loader__", None), ExtensionFileLoader):
                self._change(module)

    def remove(self) -> None:
        """Puts back what was changed, and watches no more."""
        self._patches.restore()

    def _change(self, module: ModuleType) -> None:
        path = getattr(module, "__file__", None)
        is_own = module.__name__.partition(".")[0] in _OWN
        if not is_own and path is not None and _links_to_torch(path):
            self._change_members(module, module.__name__)

    def _change_members(self, owner: Any, name: str) -> None:
        """The functions of a module or class, of its classes, and of modules inside it."""
        for key, value in list(vars(owner).items()):
            full = f"{name}.{key}"
            if isinstance(value, (ModuleType, type)):
                # Others' are only passed on.
                home = value.__name__ if isinstance(value, ModuleType) else value.__module__
                if home in (name, full):
                    self._change_members(value, full)
            elif callable(value) and not (key.startswith("__") and key != "__call__"):
                made = self._as_op(value, full)
                is_static = isinstance(owner, type) and isinstance(value, BuiltinFunctionType)
                try:
                    self._patches.replace(owner, key, staticmethod(made) if is_static else made)
                except (AttributeError, TypeError):
                    # A class that cannot be changed stays as it is.
                    return

    def _as_op(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        adapter = self._adapter

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            used = {storage_address(tensor): tensor for tensor in tensors_in((args, kwargs))}
            used.pop(0, None)
            if not any(adapter.moves(address) for address in used):
                # It is not an op, but may change what operators that are run again have read.
                for address in used:
                    adapter.lend(address, name)
                return function(*args, **kwargs)
            with _native.op(adapter, name):
                for tensor in used.values():
                    adapter.touch(tensor, _UNKNOWN)
                result = function(*args, **kwargs)
                for tensor in tensors_in(result):
                    adapter.touch(tensor, _OUTPUT)
            return result

        return run
