"""What `smartswap top` shows of this process: a small file that is written as steps end.

It lies in `$XDG_RUNTIME_DIR/smartswap`, else in `smartswap-UID` of `$TMPDIR` or `/tmp`, as
`PID.json`. It is the old one or the new one at any time, and goes with the engine. What a process
leaves that was killed names one that is not there any more; the next one to begin removes it.
Where no file can be written there is none, and training goes on.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from .ranks import Ranks

__all__ = ["Status", "folder"]

# So often at most it is written, which takes some 100 us.
_PAUSE_S = 0.25

_COUNTERS = (
    "stage", "steps", "steps_by_stage", "plan", "limit_bytes", "outside_bytes", "swapped_out_bytes",
    "swapped_in_bytes", "recomputed_ops", "misses", "rescues", "stall_us", "last_step_us",
    "unlimited_us",
)
_LEVELS = ("requested_bytes", "active_bytes", "reserved_bytes", "pinned_host_bytes")


def folder() -> Path:
    """Where the files of this user's processes are."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return Path(runtime, "smartswap")
    return Path(os.environ.get("TMPDIR") or "/tmp", f"smartswap-{os.getuid()}")


def started(pid: int) -> int | None:
    """When a process started, in the system's ticks; None if there is none of this number."""
    try:
        # The name before it may have any characters.
        told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
        return int(told.split()[19])
    except (OSError, ValueError, IndexError):
        return None


class Status:
    """The file of this process's engine."""

    def __init__(self, device: str, ranks: Ranks) -> None:
        self._pid = os.getpid()
        self._known = {
            "pid": self._pid,
            "started": started(self._pid),
            "command": sys.orig_argv,
            "device": device,
            "rank": ranks.rank,
            "n_ranks": ranks.n_ranks,
        }
        self._written_s = 0.0
        self._file: Path | None = None
        with suppress(OSError):
            home = _own(folder())
            _remove_dead(home)
            self._file = home / f"{self._pid}.json"

    def tell(self, adapter: Any) -> None:
        """Call it after each step."""
        now_s = time.monotonic()
        if self._file is None or now_s - self._written_s < _PAUSE_S:
            return
        self._written_s = now_s
        now = adapter.stats()
        told = self._known | {"written_s": time.time()}
        told |= {name: now[name] for name in (*_COUNTERS, *_LEVELS)}
        beside = self._file.with_suffix(".new")
        try:
            beside.write_text(json.dumps(told))
            beside.replace(self._file)
        except OSError:
            self._file = None

    def remove(self) -> None:
        """Removes the file, if it is not a parent's."""
        file, self._file = self._file, None
        if file is not None and self._pid == os.getpid():
            with suppress(OSError):
                file.unlink(missing_ok=True)


def _own(home: Path) -> Path:
    """The folder, which nobody else may write to. Raises OSError."""
    home.mkdir(mode=0o700, exist_ok=True)
    found = home.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or found.st_mode & 0o022:
        raise PermissionError(f"{home} is somebody else's")
    return home


def _remove_dead(home: Path) -> None:
    for file in home.glob("*.json"):
        with suppress(OSError, ValueError, AttributeError):
            told = json.loads(file.read_text())
            if told.get("started") != started(int(file.stem)):
                file.unlink()
