"""Tells the engine how PyTorch orders its own streams, where the engine checks all order."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch

from .errors import SettingsError

__all__ = ["ToldOrder"]

# As smartswap_order_call numbers them.
_RECORD, _WAIT, _DESTROY_EVENT = 0, 1, 2
_SYNCHRONIZE_EVENT, _SYNCHRONIZE_STREAM, _SYNCHRONIZE_DEVICE = 3, 4, 5
# What torch_npu's trace reports: streams, not kernels.
_STREAMS = 0


class ToldOrder:
    """Callbacks of PyTorch's own events and waits, while they are installed."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._installed: list[tuple[list[Any], Any]] = []

    def install(self, device: str) -> None:
        """Tells of each call from here on, if order is checked on a device with streams.

        Raises SettingsError if this PyTorch does not report its calls.
        """
        if device == "host" or not self._adapter.checks_order():
            return
        note = self._adapter.note_order
        kind = device.partition(":")[0]
        callbacks = {
            "EventRecord": lambda event, stream: note(_RECORD, event, stream),
            "EventWait": lambda event, stream: note(_WAIT, event, stream),
            "EventDeletion": lambda event: note(_DESTROY_EVENT, event, 0),
            "EventSynchronization": lambda event: note(_SYNCHRONIZE_EVENT, event, 0),
            "StreamSynchronization": lambda stream: note(_SYNCHRONIZE_STREAM, 0, stream),
            "DeviceSynchronization": lambda: note(_SYNCHRONIZE_DEVICE, 0, 0),
        }
        try:
            for name, callback in callbacks.items():
                self._add(kind, name, callback)
            _activate(kind)
        except (AttributeError, ImportError) as error:
            raise SettingsError(
                f"check_order needs PyTorch to report its events, which this one does not: {error}"
            ) from error

    def _add(self, kind: str, name: str, callback: Any) -> None:
        if kind == "cuda":
            registry = getattr(importlib.import_module("torch.cuda._gpu_trace"), f"{name}Callbacks")
        else:
            trace = importlib.import_module("torch_npu.utils._npu_trace")
            registry = getattr(trace, f"NPU{name}Callbacks")
        before = len(registry.callback_list)
        # torch_npu wants to know who listens.
        is_named = len(inspect.signature(registry.add_callback).parameters) > 1
        registry.add_callback(*((callback, "smartswap") if is_named else (callback,)))
        self._installed.append((registry.callback_list, registry.callback_list[before]))

    def remove(self) -> None:
        """Tells of nothing more. PyTorch goes on to report, to nobody."""
        for callbacks, entry in self._installed:
            callbacks.remove(entry)
        self._installed.clear()


def _activate(kind: str) -> None:
    if kind == "cuda":
        torch._C._activate_gpu_trace()
    else:
        importlib.import_module("torch_npu")._C._activate_npu_trace(_STREAMS)
