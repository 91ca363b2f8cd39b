"""Loads the compiled adapter, and says clearly why it cannot be loaded."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from .errors import IncompatibleTorchError, NotBuiltError

__all__ = ["FOLDER", "adapter", "built_for", "check_torch", "loaded", "op"]

FOLDER = Path(__file__).parent
_BUILD_FILE = FOLDER / "_built_for.json"
TORCH_LEAST = (2, 7)

_REINSTALL = "build it again: pip install --force-reinstall --no-deps --no-build-isolation ./python"


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def check_torch(built_for: dict[str, Any], version: str, cuda: str | None) -> None:
    """Raises IncompatibleTorchError unless the installed PyTorch fits what was built."""
    if _numbers(version) < TORCH_LEAST:
        least = ".".join(map(str, TORCH_LEAST))
        raise IncompatibleTorchError(
            f"PyTorch {version} is too old: SmartSwap needs {least} or later; "
            f"pip install 'torch>={least}', then {_REINSTALL}"
        )
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


def built_for() -> dict[str, Any]:
    """What the package was built for: `torch`, `torch_cuda` and `cuda` (compiled in or not)."""
    try:
        return json.loads(_BUILD_FILE.read_text())
    except (OSError, ValueError) as error:
        raise NotBuiltError(
            "the compiled part of SmartSwap is missing; in the repository run: "
            "pip install --no-build-isolation ./python"
        ) from error


_adapter: ModuleType | None = None


def adapter() -> ModuleType:
    """The compiled adapter, loaded at the first call."""
    global _adapter
    if _adapter is None:
        check_torch(built_for(), torch.__version__, torch.version.cuda)
        try:
            _adapter = importlib.import_module("smartswap._adapter")
        except ImportError as error:
            raise IncompatibleTorchError(
                f"the compiled part of SmartSwap does not load ({error}); {_REINSTALL}"
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
