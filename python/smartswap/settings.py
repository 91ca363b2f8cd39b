"""What the engine is opened with: checked, and with the defaults filled in."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from .errors import SettingsError, nearest
from .ranks import Ranks, free_host_bytes
from .sizes import parse_size

__all__ = ["LOG_LEVELS", "PREFERENCES", "STRATEGIES", "Settings"]

PREFERENCES = ("performance", "memory")
STRATEGIES = ("joint", "swap", "recompute", "keep")
LOG_LEVELS = ("debug", "info", "warning", "error")

# The engine's own smallest block that moves, and its share of a small cap.
_MIN_BLOCK_BYTES = 8 << 20
_BLOCKS_PER_CAP = 512
# A day.
_WAIT_S_MOST = 86400.0
# No engine moves blocks below one page of its smallest device.
_LEAST_BLOCK_BYTES = 64 << 10


def _choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        hint = nearest(str(value), known)
        raise SettingsError(f"{name} is one of {', '.join(known)}, not {value!r}{hint}")


def _seconds(value: Any, name: str) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds <= _WAIT_S_MOST:
        raise SettingsError(f"{name} is a number of seconds such as 30, not {value!r}")
    return seconds


# What is read from texts or numbers: the field that keeps it, and how it is read.
_PARSED = {
    "memory": ("memory_bytes", parse_size),
    "host_memory": ("host_memory_bytes", parse_size),
    "min_block": ("min_block_bytes", parse_size),
    "rank_wait": ("rank_wait_s", _seconds),
}


@dataclass(frozen=True)
class Settings:
    """The settings of one engine. Sizes are bytes; the engine chooses for 0 and None."""

    device: str | None = None
    memory_bytes: int = 0
    host_memory_bytes: int = 0
    min_block_bytes: int = 0
    prefer: str | None = None
    strategy: str | None = None
    config: str | None = None
    report: str | None = None
    record: str | None = None
    manual_steps: bool = False
    rank_wait_s: float = 30.0

    @staticmethod
    def parse(**wishes: Any) -> Settings:
        """Settings from what a user wrote; None stands for the default.

        Sizes (`memory`, `host_memory`, `min_block`) are texts such as `24GiB` or numbers of
        bytes. Raises SettingsError for an unknown name or a bad value.
        """
        plain = {field.name for field in fields(Settings)} - {kept for kept, _ in _PARSED.values()}
        known = plain | _PARSED.keys()
        values: dict[str, Any] = {}
        for name, value in wishes.items():
            if name not in known:
                raise SettingsError(f"unknown setting '{name}'{nearest(name, known)}")
            if value is None:
                continue
            if name in _PARSED:
                kept, parse = _PARSED[name]
                values[kept] = parse(value, name)
            else:
                values[name] = value
        return Settings(**values)._checked()

    def _checked(self) -> Settings:
        if self.prefer is not None:
            _choice("prefer", self.prefer, PREFERENCES)
        if self.strategy is not None:
            _choice("strategy", self.strategy, STRATEGIES)
        if self.config is not None and not os.path.isfile(self.config):
            raise SettingsError(f"config: there is no file '{self.config}'")
        if self.report is not None and os.path.isfile(self.report):
            raise SettingsError(f"report: '{self.report}' is a file; name a folder")
        folder = os.path.dirname(os.path.abspath(self.record)) if self.record else None
        if folder is not None and not os.path.isdir(folder):
            raise SettingsError(f"record: there is no folder '{folder}'; make it first")
        return self

    def for_adapter(self, device: str, ranks: Ranks) -> dict[str, Any]:
        """The settings as the compiled adapter takes them, for this rank of a node."""
        free_bytes = free_host_bytes() if ranks.n_local_ranks > 1 else None
        wishes: dict[str, Any] = {
            "device": device,
            "memory_bytes": self.memory_bytes,
            "host_memory_bytes": ranks.host_bytes(self.host_memory_bytes, free_bytes),
            "min_block_bytes": self.min_block_bytes,
        }
        # Only what was asked for: it wins over the file.
        if self.prefer is not None:
            wishes["prefer"] = self.prefer
        if self.strategy is not None:
            wishes["strategy"] = self.strategy
        if self.config is not None:
            wishes["config_file"] = os.fspath(self.config)
        if self.record is not None:
            wishes["record_file"] = self.file_of_rank(os.fspath(self.record), ranks)
        return wishes

    @staticmethod
    def file_of_rank(path: str, ranks: Ranks) -> str:
        """`path`, with the rank in its name where there are several: `a.json`, `a.rank1.json`."""
        if ranks.n_ranks == 1:
            return path
        stem, extension = os.path.splitext(path)
        return f"{stem}.rank{ranks.rank}{extension}"

    def moving_bytes(self, limit_bytes: int) -> int:
        """A bound from below on the size in bytes of blocks that move."""
        if self.config is not None:
            return _LEAST_BLOCK_BYTES
        if self.min_block_bytes:
            return self.min_block_bytes
        return max(_LEAST_BLOCK_BYTES, min(_MIN_BLOCK_BYTES, limit_bytes // _BLOCKS_PER_CAP))
