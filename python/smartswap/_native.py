"""Loads the compiled adapter, and says clearly why it cannot be loaded."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from . import adapters
from .errors import IncompatibleTorchError
from .recipe import BUILT_FOR, Torch

__all__ = ["FOLDER", "adapter", "built_for", "check_torch", "loaded", "op"]

FOLDER = Path(__file__).parent
TORCH_LEAST = (2, 7)

_REINSTALL = "build it again: pip install --force-reinstall --no-deps --no-build-isolation ./python"


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def _check_age(version: str) -> None:
    if _numbers(version) < TORCH_LEAST:
        least = ".".join(map(str, TORCH_LEAST))
        raise IncompatibleTorchError(
            f"PyTorch {version} is too old: SmartSwap needs {least} or later; "
            f"pip install 'torch>={least}', then {_REINSTALL}"
        )


def check_torch(built_for: dict[str, Any], version: str, cuda: str | None) -> None:
    """Raises IncompatibleTorchError unless the installed PyTorch fits what setup.py built."""
    _check_age(version)
    if built_for["torch"] != version:
        raise IncompatibleTorchError(
            f"SmartSwap was built against PyTorch {built_for['torch']}, but {version} is "
            f"installed; {_REINSTALL}"
        )
    if built_for.get("torch_cuda") != cuda:
        raise IncompatibleTorchError(
            f"SmartSwap was built against a PyTorch for CUDA {built_for.get('torch_cuda')}, but "
            f"the installed one is for CUDA {cuda}; {_REINSTALL}"
        )


@cache
def _adapter_folder() -> Path:
    running = Torch(Path(torch.__file__).parent, str(torch.__version__), torch.version.cuda)
    _check_age(running.version)
    folder = adapters.folder_for(FOLDER, running)
    if folder != FOLDER:
        # The module is of this package wherever it lies.
        sys.modules[__package__].__path__.append(str(folder))
    return folder


def built_for() -> dict[str, Any]:
    """What the adapter was built for: `torch`, `torch_cuda` and `cuda` (compiled in or not)."""
    return json.loads((_adapter_folder() / BUILT_FOR).read_text())


_adapter: ModuleType | None = None


def adapter() -> ModuleType:
    """The compiled adapter, loaded at the first call."""
    global _adapter
    if _adapter is None:
        folder = _adapter_folder()
        if folder == FOLDER:
            check_torch(built_for(), torch.__version__, torch.version.cuda)
        try:
            _adapter = importlib.import_module("smartswap._adapter")
        except ImportError as error:
            again = _REINSTALL if folder == FOLDER else f"remove {folder} and install it again"
            raise IncompatibleTorchError(
                f"the compiled part of SmartSwap does not load ({error}); {again}"
            ) from error
    return _adapter


def loaded() -> ModuleType | None:
    """The adapter if it has been loaded."""
    return _adapter


@contextmanager
def op(adapter: Any, name: str) -> Iterator[None]:
    """An op of this thread: what is touched in it stays on the device until it ends."""
    adapter.begin(name)
    try:
        yield
    finally:
        adapter.end()
