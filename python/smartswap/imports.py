"""Changes modules of others right after their import, whenever that is."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["ImportWatch"]


class ImportWatch(importlib.abc.MetaPathFinder):
    """Runs functions over modules right after their import."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self._changes = dict(changes)

    def install(self) -> None:
        """Runs those whose modules are imported already, and watches for the others."""
        if self in sys.meta_path:
            return
        sys.meta_path.insert(0, self)
        for name in [name for name in self._changes if name in sys.modules]:
            self._changes.pop(name)(sys.modules[name])

    def remove(self) -> None:
        """Watches no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The spec that the other finders have, with our function behind its loader."""
        if name not in self._changes:
            return None
        change = self._changes.pop(name)
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _run_after(spec.loader, change)
                return spec
        return None


def _run_after(loader: Any, change: Callable[[ModuleType], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        change(module)

    loader.exec_module = exec_module
