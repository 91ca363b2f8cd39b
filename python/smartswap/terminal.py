"""The last line of a terminal says what goes on, and is the script's again when it is over."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TextIO

__all__ = ["ClearingHandler", "clear", "open_line", "show"]

# Where the cursor is, kept and taken up again.
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_ERASE_LINE = "\x1b[2K"
_UP = "\x1b[1A"
# In less there is no room for it.
_ROWS_LEAST = 4


class _Line:
    """The last line of a terminal, above which all else scrolls meanwhile."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        # Of the terminal while the line is shown.
        self._rows = 0

    def show(self, text: str) -> None:
        rows, columns = _size(self._stream)
        if rows < _ROWS_LEAST:
            return
        start = ""
        if rows != self._rows:
            # One line further, so that what the script writes next is not in the last one.
            region = f"\x1b[1;{rows - 1}r"
            start = f"\n{_SAVE}{region}{_RESTORE}{_UP}"
            self._rows = rows
        self._write(f"{start}{_SAVE}{_at(rows)}{_ERASE_LINE}{text[: columns - 1]}{_RESTORE}")

    def clear(self) -> None:
        if self._rows:
            self._write(f"{_SAVE}\x1b[r{_at(self._rows)}{_ERASE_LINE}{_RESTORE}")
            self._rows = 0

    def _write(self, text: str) -> None:
        # The terminal may have gone.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


_line: _Line | None = None


def open_line() -> None:
    """Shows what is told from here on, if stderr is a terminal."""
    global _line
    stream = sys.stderr
    if stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        _line = _Line(stream)


def show(text: str) -> None:
    """Replaces what was shown."""
    if _line is not None:
        _line.show(f"smartswap: {text}")


def clear() -> None:
    """Shows nothing."""
    if _line is not None:
        _line.clear()


class ClearingHandler(logging.StreamHandler):
    """Writes records to stderr where the line was."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one."""
        clear()
        super().emit(record)


def _at(row: int) -> str:
    return f"\x1b[{row};1H"


def _size(stream: TextIO) -> tuple[int, int]:
    """Rows and columns."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 0, 0
    return size.lines, size.columns
