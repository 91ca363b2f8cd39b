"""Where a process writes its report at its end: no report of another process of the run is lost."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_log = logging.getLogger("smartswap")
_STARTED = time.time()
# Every report has it.
_LANDMARK = "stats.json"
# The others, of which some are missing where there is nothing to say.
_FILES = (
    _LANDMARK, "explain.json", "trace.json", "plan.json", "steps.json", "lanes.json", "caps.json",
    "step.html", "timeline.json",
)
# What was written, and by which process: a forked child knows what its parent wrote.
_written: set[tuple[int, str]] = set()


def note_written(folder: str | os.PathLike[str]) -> None:
    """Remembers a report as this process's own, to be written over."""
    _written.add((os.getpid(), os.path.realpath(folder)))


@contextmanager
def claimed(folder: str) -> Iterator[None]:
    """While in here no other process writes its last report to `folder`, which is made.

    A report that another process wrote there since this one began moves to a folder inside it:
    the last to end, which is the one that started the others, has its own at the top. An older
    report is of another run, and stays to be written over.

    Raises OSError if a folder cannot be made.
    """
    os.makedirs(folder, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # NFS locks no folder: two processes that end at once may then mix their files.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_of_another(folder):
            _log.warning("the report of another process in %s is now in %s", folder, _move(folder))
        yield
    finally:
        os.close(lock)


def _is_of_another(folder: str) -> bool:
    if (os.getpid(), os.path.realpath(folder)) in _written:
        return False
    try:
        return Path(folder, _LANDMARK).stat().st_mtime > _STARTED
    except FileNotFoundError:
        return False


def _move(folder: str) -> Path:
    number = 1
    while (new := Path(folder, f"process{number}")).exists():
        number += 1
    new.mkdir()
    for name in _FILES:
        if (file := Path(folder, name)).exists():
            file.rename(new / name)
    return new
