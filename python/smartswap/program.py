"""The engine's command line, `smartswap`, which is packed with the engine."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ._native import FOLDER

__all__ = ["main", "packages", "path"]

# What `smartswap doctor` names beside the drivers.
_PACKAGES = ("torch", "torch_npu")


def path() -> Path | None:
    """The program; None where the package was built around a library alone."""
    file = FOLDER / "bin" / "smartswap"
    return file if file.is_file() else None


def packages() -> str:
    """What is installed of PyTorch, with versions; nothing is imported for it."""
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def main() -> None:
    """Runs it with this process's arguments: what pip puts on the path as `smartswap`."""
    program = path()
    if program is None:
        print("smartswap: the package was built without its command line", file=sys.stderr)
        raise SystemExit(2)
    environment = os.environ | {"SMARTSWAP_PACKAGES": packages()}
    os.execve(program, ["smartswap", *sys.argv[1:]], environment)
