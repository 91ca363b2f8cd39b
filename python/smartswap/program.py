"""The engine's command line, `smartswap`, which is packed with the engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ._native import FOLDER

__all__ = ["main", "path"]


def path() -> Path | None:
    """The program; None where the package was built around a library alone."""
    file = FOLDER / "bin" / "smartswap"
    return file if file.is_file() else None


def main() -> None:
    """Runs it with this process's arguments: what pip puts on the path as `smartswap`."""
    program = path()
    if program is None:
        print("smartswap: the package was built without its command line", file=sys.stderr)
        raise SystemExit(2)
    os.execv(program, ["smartswap", *sys.argv[1:]])
