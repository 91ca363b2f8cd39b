"""Files of tensors that libraries write or read with memory for all of them at once.

safetensors collects the addresses of all tensors before it writes the first. Tensors of an
accelerator it copies to the CPU for that; those of the software device are CPU tensors already,
and more of them than fit would have to be there at once. So they are copied as well.

transformers takes memory for all weights of a device, in one piece, and gives it back before it
reads the first, so that PyTorch keeps it. The engine keeps memory by size, so that would not help,
and more of it than fits would be an error. So it is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from .imports import ImportWatch
from .patches import Patches

__all__ = ["TensorFiles"]

# What takes one tensor and returns its bytes, in the versions of safetensors from 0.4 on.
_READERS = ("_to_ndarray", "_tobytes")
# What takes the memory beforehand, in transformers from 4.50 on.
_WARMUP = "caching_allocator_warmup"


def _copy_in_plain_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory that the engine does not move."""
    plain = torch.frombuffer(bytearray(tensor.nbytes), dtype=tensor.dtype)
    return plain.view(tensor.shape).copy_(tensor.detach())


class TensorFiles:
    """Lets libraries write CPU tensors wherever their bytes are, and read more than fits."""

    def __init__(self) -> None:
        self._imports = ImportWatch(
            {
                "safetensors.torch": self._change_safetensors,
                "transformers.modeling_utils": self._change_transformers,
            }
        )
        self._patches = Patches()

    def install(self) -> None:
        """Changes the libraries, or watches for their import."""
        self._imports.install()

    def remove(self) -> None:
        """Puts back what was changed, and watches no more."""
        self._imports.remove()
        self._patches.restore()

    def _change_safetensors(self, module: ModuleType) -> None:
        for name in _READERS:
            function = getattr(module, name, None)
            if function is not None:
                self._patches.replace(module, name, _reading_a_copy(function))

    def _change_transformers(self, module: ModuleType) -> None:
        if hasattr(module, _WARMUP):
            self._patches.replace(module, _WARMUP, _nothing)


def _nothing(*_: Any, **__: Any) -> None:
    """Takes no memory beforehand."""


def _reading_a_copy(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        is_plain = tensor.device.type != "cpu" or tensor.nbytes == 0
        source = tensor if is_plain else _copy_in_plain_memory(tensor)
        return function(source, *args, **kwargs)

    return run
