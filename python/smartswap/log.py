"""What the package tells on stderr when it was started from outside a script."""

from __future__ import annotations

import logging

from . import terminal
from .settings import check_choice

__all__ = ["LEVELS", "checked", "to_stderr"]

LEVELS = ("debug", "info", "warning", "error")


def checked(level: str) -> str:
    """The level itself. Raises SettingsError if there is no such level."""
    check_choice("--log-level", level, LEVELS)
    return level


def to_stderr(level: str) -> None:
    """Has what is as grave as `level` told there, a line each; on a terminal also what goes on."""
    logger = logging.getLogger("smartswap")
    terminal.open_line()
    handler = terminal.ClearingHandler()
    handler.setFormatter(logging.Formatter("smartswap: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
