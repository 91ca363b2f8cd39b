"""Where this process stands among the processes of a launcher such as torchrun."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import SettingsError

__all__ = ["Ranks", "free_host_bytes"]

# What a rank leaves of the host memory that is free, for everybody else.
_HOST_SHARE = 0.8


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not text.isdigit():
        raise SettingsError(f"the environment variable {name} is '{text}'; it must be a number")
    return int(text)


@dataclass(frozen=True)
class Ranks:
    """The ranks that a launcher gave this process; one process alone has the defaults."""

    rank: int = 0
    n_ranks: int = 1
    local_rank: int = 0
    n_local_ranks: int = 1

    @staticmethod
    def read(environment: Mapping[str, str] | None = None) -> Ranks:
        """The ranks that RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE tell of."""
        names = os.environ if environment is None else environment
        n_local = max(1, _number(names, "LOCAL_WORLD_SIZE", 1))
        return Ranks(
            rank=_number(names, "RANK", 0),
            n_ranks=max(1, _number(names, "WORLD_SIZE", 1)),
            local_rank=_number(names, "LOCAL_RANK", 0),
            n_local_ranks=n_local,
        )

    def host_bytes(self, asked_bytes: int, free_bytes: int | None) -> int:
        """The host memory of this rank in bytes; 0 leaves the choice to the engine.

        What was asked for is for the whole node, and its ranks share it alike. A rank that was
        asked for nothing takes its share of what is free, unless it is alone.
        """
        if asked_bytes:
            return max(1, asked_bytes // self.n_local_ranks)
        if self.n_local_ranks == 1 or free_bytes is None:
            return 0
        return max(1, int(free_bytes * _HOST_SHARE) // self.n_local_ranks)


def free_host_bytes(root: Path = Path("/")) -> int | None:
    """Host memory in bytes that this process may still take, or None where nothing tells."""
    free_bytes = None
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free_bytes = int(line.split()[1]) * 1024
        group = root / "sys/fs/cgroup"
        limit = (group / "memory.max").read_text().strip()
        if limit.isdigit():
            left = int(limit) - int((group / "memory.current").read_text())
            free_bytes = left if free_bytes is None else min(free_bytes, left)
    except (OSError, ValueError, IndexError):
        pass
    return None if free_bytes is None else max(0, free_bytes)
