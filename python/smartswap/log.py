"""What the package tells on stderr when it was started from outside a script."""

from __future__ import annotations

import logging

from . import terminal
from .settings import check_choice

__all__ = ["LEVELS", "checked", "to_stderr"]

LEVELS = ("debug", "info", "warning", "error")


def checked(level: str, asked_by: str) -> str:
    """The level itself, as a flag or a variable of this name asks for it. Raises SettingsError if
    there is no such level."""
    check_choice(asked_by, level, LEVELS)
    return level


class _Kept(logging.Logger):
    """A logger that a script leaves on where it configures logging.

    `logging.config.dictConfig` disables all loggers that it does not name, unless it is told not
    to. Whoever started the script asked to see them.
    """

    @property
    def disabled(self) -> bool:
        """False, whatever it is set to."""
        return False

    @disabled.setter
    def disabled(self, value: bool) -> None:
        pass


def to_stderr(level: str) -> None:
    """Has what is as grave as `level` told there, a line each; on a terminal also what goes on."""
    logger = logging.getLogger("smartswap")
    logger.__class__ = _Kept
    # Of a class of loggers that a framework had installed by then.
    logger.filters.clear()
    terminal.open_line()
    handler = terminal.ClearingHandler()
    handler.setFormatter(logging.Formatter("smartswap: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
