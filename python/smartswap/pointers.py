"""Raw pointers: memory whose address leaves PyTorch, or that PyTorch reads beside its operators.

Whoever has an address may use it where no operator says so. One rule for each way to get one:

- `data_ptr()` inside an operator: the operator keeps the memory until it ends.
- `data_ptr()` elsewhere: the memory stays until the step ends. Where room runs out with all else
  away, what was asked for the longest ago leaves earlier.
- What makes another object over the memory (NumPy, DLPack, `__cuda_array_interface__`), or gives
  it to other processes: the memory stays until it is freed.
- Functions that read or write memory themselves and are done when they return are one op.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from . import _native
from .patches import Patches

__all__ = ["RawPointers"]

_READ, _WRITE, _READ_WRITE = 0, 1, 2
_storage_data_ptr = torch.UntypedStorage.data_ptr


def _storage_of(value: Any) -> torch.UntypedStorage:
    if isinstance(value, torch.Tensor):
        return value.untyped_storage()
    return value if isinstance(value, torch.UntypedStorage) else value._untyped_storage


def storage_address(value: Any) -> int:
    """Where the memory under a tensor or storage begins; 0 for none."""
    try:
        storage = _storage_of(value)
        return 0 if storage.device.type == "meta" else _storage_data_ptr(storage)
    except (AttributeError, RuntimeError, NotImplementedError):
        # Sparse, fake and functional tensors have no one memory.
        return 0


def _asker(function: Callable[..., Any], depth: int) -> str:
    """The function that gives an address away, and the line that calls it, for reports."""
    frame = sys._getframe(depth)
    path = frame.f_code.co_filename.split(os.sep)
    return f"{function.__name__} in {os.sep.join(path[-2:])}:{frame.f_lineno}"


class RawPointers:
    """Watches the ways by which addresses leave PyTorch, of memory that the engine moves."""

    def __init__(self, adapter: ModuleType) -> None:
        self._adapter = adapter
        self._patches = Patches()

    def install(self) -> None:
        """Begins to watch. Does nothing if it does already."""
        if self._patches:
            return
        tensor, storage = torch.Tensor, torch.UntypedStorage
        for owner in (tensor, storage, torch.TypedStorage):
            self._replace(owner, "data_ptr", self._lending)
        for name in ("numpy", "__array__", "__dlpack__", "share_memory_"):
            self._replace(tensor, name, self._holding)
        self._replace(tensor, "__cuda_array_interface__", self._holding_property)
        self._replace(torch.utils.dlpack, "to_dlpack", self._holding)
        self._replace(torch, "to_dlpack", self._holding)
        for owner in (storage, torch.TypedStorage):
            self._replace(owner, "share_memory_", self._holding)
            for name in ("_share_filename_cpu_", "_share_fd_cpu_", "_share_cuda_"):
                self._replace(owner, name, self._holding)
        self._replace(tensor, "tolist", lambda function: self._as_op(function, _READ))
        for owner in (storage, torch.TypedStorage):
            for name in ("__getitem__", "tolist", "_write_file"):
                self._replace(owner, name, lambda function: self._as_op(function, _READ))
            self._replace(owner, "__setitem__", lambda function: self._as_op(function, _READ_WRITE))
        for name in ("fill_", "_byteswap", "_set_from_file"):
            self._replace(storage, name, lambda function: self._as_op(function, _READ_WRITE))
        self._replace(storage, "resize_", self._resizing)
        self._replace(torch._C.PyTorchFileWriter, "write_record", self._writing)
        self._replace(torch._C.PyTorchFileReader, "get_storage_from_record", self._reading)

    def remove(self) -> None:
        """Watches no more. Memory that is kept stays so as long as was promised."""
        self._patches.restore()

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """On this thread, addresses in here are used only within a running op."""
        self._adapter.unwatch()
        try:
            yield
        finally:
            self._adapter.watch_again()

    def _replace(self, owner: Any, name: str, make: Callable[..., Any]) -> None:
        function = getattr(owner, name, None)
        if function is not None:
            self._patches.replace(owner, name, make(function))

    def _holding(self, function: Callable[..., Any]) -> Any:
        return self._keeping(function, self._adapter.hold)

    def _lending(self, function: Callable[..., Any]) -> Any:
        return self._keeping(function, self._adapter.lend)

    def _holding_property(self, attribute: property) -> property:
        assert attribute.fget is not None
        return property(self._holding(attribute.fget), doc=attribute.__doc__)

    def _keeping(self, function: Callable[..., Any], keep: Callable[[int, str], None]) -> Any:
        watches = self._adapter.watches

        @functools.wraps(function)
        def run(value: Any, *args: Any, **kwargs: Any) -> Any:
            if watches() and not torch.compiler.is_compiling():
                address = storage_address(value)
                # Of what never moves too: operators that read it are run again.
                if address and self._adapter.owns(address):
                    keep(address, _asker(function, 2))
            return function(value, *args, **kwargs)

        return run

    def _as_op(self, function: Callable[..., Any], access: int) -> Any:
        name = f"smartswap::{function.__name__}"

        @functools.wraps(function)
        def run(value: Any, *args: Any, **kwargs: Any) -> Any:
            view = self._view_of_moving(value)
            if view is None:
                return function(value, *args, **kwargs)
            with _native.op(self._adapter, name):
                self._adapter.touch(view, access)
                return function(value, *args, **kwargs)

        return run

    def _resizing(self, function: Callable[..., Any]) -> Any:
        """Changes the size of a storage, which copies what stays; nothing does of an empty one."""
        copying = self._as_op(function, _READ)

        @functools.wraps(function)
        def run(storage: Any, size: int) -> Any:
            return copying(storage, size) if size else function(storage, size)

        return run

    def _writing(self, function: Callable[..., Any]) -> Any:
        """A writer of records into a file, which reads the memory of a storage itself."""

        def run(writer: Any, name: str, content: Any, *args: Any, **kwargs: Any) -> Any:
            view = self._view_of_moving(content)
            if view is None:
                return function(writer, name, content, *args, **kwargs)
            with _native.op(self._adapter, "smartswap::write_record"):
                self._adapter.touch(view, _READ)
                return function(writer, name, content, *args, **kwargs)

        return run

    def _reading(self, function: Callable[..., Any]) -> Any:
        """A reader of records, which fills memory that it allocates itself."""

        def run(reader: Any, *args: Any, **kwargs: Any) -> Any:
            with _native.op(self._adapter, "smartswap::read_record"):
                result = function(reader, *args, **kwargs)
                self._adapter.touch(result, _WRITE)
                return result

        return run

    def _view_of_moving(self, value: Any) -> torch.Tensor | None:
        """A tensor over memory that the engine may move; None for everything else."""
        address = storage_address(value)
        if not address or not self._adapter.moves(address):
            return None
        if isinstance(value, torch.Tensor):
            return value
        storage = _storage_of(value)
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
