"""Tensors in host memory that the device addresses directly. They do not count towards the cap."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from . import _native
from .engine import open_adapter
from .engine import device as engine_device
from .errors import SettingsError
from .pointers import storage_address

__all__ = ["Allocate", "allocator", "empty_with_swapped_memory", "is_swap_tensor"]

Allocate = Callable[[list[int], torch.dtype, torch.device], torch.Tensor]


def allocator() -> Allocate:
    """What makes tensors in such memory.

    Raises NotEnabledError, and SettingsError where copies cannot use it, as with old drivers of
    NPUs.
    """
    adapter = open_adapter()
    if not adapter.has_swapped():
        raise SettingsError(
            f"{engine_device()} has no host memory that copies can use as kernels do, so there is "
            "neither a virtual optimizer nor empty_with_swapped_memory: prefer='memory' swaps "
            "optimizer state instead"
        )
    return adapter.empty_swapped


def empty_with_swapped_memory(
    size: int | Sequence[int] | torch.Size,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """A contiguous tensor in host memory that kernels of the device read and write in place.

    Its values are not set. It never moves, and takes nothing of the cap. `device` is the device of
    the engine if left out. Raises NotEnabledError, SettingsError where copies cannot use such
    memory, and torch.OutOfMemoryError if the budget of host memory is spent.
    """
    allocate = allocator()
    sizes = [size] if isinstance(size, int) else [int(length) for length in size]
    if any(length < 0 for length in sizes):
        raise ValueError(f"a tensor has no negative size: {sizes}")
    wanted = torch.device(device) if device is not None else engine_device()
    return allocate(sizes, dtype or torch.get_default_dtype(), wanted)


def is_swap_tensor(tensor: object) -> bool:
    """Whether a tensor lies in memory of `empty_with_swapped_memory`; true for its views too."""
    adapter = _native.loaded()
    if adapter is None or not isinstance(tensor, torch.Tensor):
        return False
    address = storage_address(getattr(tensor, "_local_tensor", tensor))
    return bool(address) and bool(adapter.is_swapped(address))
