"""The devices that an engine can be opened on."""

from __future__ import annotations

import os
from typing import Any

import torch

from .errors import EnabledTooLateError, SettingsError
from .ranks import Ranks
from .sizes import format_size

__all__ = ["check_device", "choose_device", "total_bytes"]


def choose_device(wish: str | None, ranks: Ranks) -> str:
    """The device of this rank, as the adapter names it: `host`, `cuda:0`, `npu:0`."""
    if wish in ("cpu", "host"):
        return "host"
    if wish is not None:
        kind, _, index = wish.partition(":")
        if kind not in ("cuda", "npu") or not (index.isdigit() or not index):
            raise SettingsError(f"device is host, cuda, cuda:1, npu or npu:1, not '{wish}'")
        return wish if index else f"{kind}:{ranks.local_rank}"
    if torch.cuda.is_available():
        return f"cuda:{ranks.local_rank % torch.cuda.device_count()}"
    npu = getattr(torch, "npu", None)
    if npu is not None and npu.is_available():
        return f"npu:{ranks.local_rank}"
    return "host"


def check_device(device: str, built_for: dict[str, Any]) -> None:
    """Raises SettingsError or EnabledTooLateError if no engine can be opened on it now."""
    kind = device.partition(":")[0]
    if kind == "host":
        return
    if kind == "cuda" and not built_for.get("cuda"):
        raise SettingsError(
            "this SmartSwap was built without CUDA: build it again where the CUDA headers are "
            "(pip install nvidia-cuda-crt, or set CUDA_HOME), or pass device='host'"
        )
    module = getattr(torch, kind, None)
    if module is None or not module.is_available():
        raise SettingsError(f"device '{device}': PyTorch finds no such device here")
    if module.is_initialized() and module.memory_allocated() > 0:
        held = format_size(module.memory_allocated())
        raise EnabledTooLateError(
            f"PyTorch already holds {held} on {device}: call smartswap.enable() before the first "
            "tensor is made there, or start the script with: python -m smartswap script.py"
        )


def total_bytes(device: str) -> int:
    """What the device has, in bytes: of the host, the machine's memory."""
    kind, _, index = device.partition(":")
    if kind == "host":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(getattr(torch, kind).get_device_properties(int(index)).total_memory)
