"""What the engine is opened with: checked, and with the defaults filled in."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from . import deferred
from .errors import SettingsError, nearest
from .ranks import Ranks, free_host_bytes
from .sizes import parse_percent, parse_size

__all__ = ["NAMES", "PREFERENCES", "STRATEGIES", "SWITCHES", "Settings", "check_choice"]

PREFERENCES = ("performance", "memory")
STRATEGIES = ("keep", "swap", "recompute", "joint", "smartswap")

# A day.
_WAIT_S_MOST = 86400.0


def check_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Raises SettingsError, with those that are known, unless the value is one of them."""
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


def _path(value: Any, name: str) -> str:
    try:
        path = os.fspath(value)
    except TypeError:
        path = b""
    if not isinstance(path, str) or not path:
        raise SettingsError(f"{name} is a path such as 'run/{name}', not {value!r}")
    return path


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{name} is a text, not {value!r}")
    return value


def _device(value: Any, name: str) -> str:
    return _text(str(value) if isinstance(value, torch.device) else value, name)


def _switch(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(f"{name} is True or False, not {value!r}")
    return value


# Each setting: the field that keeps it, and how it is read.
_PARSED = {
    "device": ("device", _device),
    "prefer": ("prefer", _text),
    "strategy": ("strategy", _text),
    "config": ("config", _path),
    "report": ("report", _path),
    "record": ("record", _path),
    "manual_steps": ("manual_steps", _switch),
    "verify": ("verify", _switch),
    "memory": ("memory_bytes", parse_size),
    "host_memory": ("host_memory_bytes", parse_size),
    "min_block": ("min_block_bytes", parse_size),
    "rank_wait": ("rank_wait_s", _seconds),
    "defer_updates": ("defer_updates", _text),
}
NAMES = tuple(_PARSED)
SWITCHES = tuple(name for name, (_, parse) in _PARSED.items() if parse is _switch)


@dataclass(frozen=True)
class Settings:
    """The settings of one engine. Sizes are bytes; the engine chooses for 0 and None."""

    device: str | None = None
    memory_bytes: int = 0
    # Of all that the device has, where the cap is not a number of bytes.
    memory_percent: float = 0.0
    host_memory_bytes: int = 0
    min_block_bytes: int = 0
    prefer: str | None = None
    strategy: str | None = None
    config: str | None = None
    report: str | None = None
    record: str | None = None
    manual_steps: bool = False
    verify: bool = False
    rank_wait_s: float = 30.0
    defer_updates: str = "auto"

    @staticmethod
    def parse(**wishes: Any) -> Settings:
        """Settings from what a user wrote; None stands for the default.

        Sizes (`memory`, `host_memory`, `min_block`) are texts such as `24GiB` or numbers of
        bytes, and `memory` may be a share of the device: `60%`. Raises SettingsError for an unknown
        name or a bad value.
        """
        values: dict[str, Any] = {}
        for name, value in wishes.items():
            if name not in _PARSED:
                raise SettingsError(f"unknown setting '{name}'{nearest(name, _PARSED)}")
            if value is None:
                continue
            percent = parse_percent(value, name) if name == "memory" else None
            if percent is not None:
                values["memory_percent"] = percent
            else:
                kept, parse = _PARSED[name]
                values[kept] = parse(value, name)
        return Settings(**values)._checked()

    def _checked(self) -> Settings:
        if self.prefer is not None:
            check_choice("prefer", self.prefer, PREFERENCES)
        if self.strategy is not None:
            check_choice("strategy", self.strategy, STRATEGIES)
        check_choice("defer_updates", self.defer_updates, deferred.MODES)
        if self.config is not None and not os.path.isfile(self.config):
            raise SettingsError(f"config: there is no file '{self.config}'")
        if self.report is not None and os.path.isfile(self.report):
            raise SettingsError(f"report: '{self.report}' is a file; name a folder")
        folder = os.path.dirname(os.path.abspath(self.record)) if self.record else None
        if folder is not None and not os.path.isdir(folder):
            raise SettingsError(f"record: there is no folder '{folder}'; make it first")
        if self.record is not None and os.path.isdir(self.record):
            raise SettingsError(f"record: '{self.record}' is a folder; name a file in it")
        return self

    @property
    def has_cap(self) -> bool:
        """Whether memory was limited."""
        return self.memory_bytes > 0 or self.memory_percent > 0

    def for_adapter(
        self, device: str, ranks: Ranks, total_bytes: Callable[[], int]
    ) -> dict[str, Any]:
        """The settings as the compiled adapter takes them, for this rank of a node.

        total_bytes: tells what the device has, where the cap is a share of it.
        """
        memory_bytes = self.memory_bytes
        if self.memory_percent:
            memory_bytes = int(total_bytes() * self.memory_percent / 100)
        free_bytes = free_host_bytes() if ranks.n_local_ranks > 1 else None
        wishes: dict[str, Any] = {
            "device": device,
            "memory_bytes": memory_bytes,
            "host_memory_bytes": ranks.host_bytes(self.host_memory_bytes, free_bytes),
            "min_block_bytes": self.min_block_bytes,
        }
        # Only what was asked for: it wins over the file.
        if self.prefer is not None:
            wishes["prefer"] = self.prefer
        if self.strategy is not None:
            wishes["strategy"] = self.strategy
        if self.config is not None:
            wishes["config_file"] = self.config
        if self.record is not None:
            wishes["record_file"] = self.file_of_rank(self.record, ranks)
        return wishes

    @staticmethod
    def file_of_rank(path: str, ranks: Ranks) -> str:
        """`path`, with the rank in its name where there are several: `a.json`, `a.rank1.json`."""
        if ranks.n_ranks == 1:
            return path
        stem, extension = os.path.splitext(path)
        return f"{stem}.rank{ranks.rank}{extension}"
