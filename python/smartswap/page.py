"""The pictures of a report: time and memory over the step, by the engine's command line."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path

from ._native import FOLDER

__all__ = ["draw"]

_log = logging.getLogger("smartswap")

# A step of a million operators takes a minute.
_TIMEOUT_S = 300


def draw(folder: Path, limit_bytes: int) -> None:
    """Draws `step.html` and `timeline.json` (Perfetto) from a folder's `trace.json`.

    Under its `plan.json`, if there is one.

    limit_bytes: the cap that the step ran under.
    What cannot be drawn is a line in the log: the report is whole without it.
    """
    program = FOLDER / "bin" / "smartswap"
    trace, plan = folder / "trace.json", folder / "plan.json"
    if not trace.is_file():
        return
    if not program.is_file():
        _log.info("no step.html in the report: the package was built without its command line")
        return
    words = [program, "simulate", trace, "--memory", limit_bytes]
    words += ["--report", folder / "step.html", "--timeline", folder / "timeline.json"]
    if plan.is_file():
        words += ["--plan", plan]
    try:
        done = subprocess.run(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.warning("no step.html in the report: %s", error)
        return
    # 1 says that memory runs out in the simulated step; the page is there and shows it.
    if done.returncode not in (0, 1):
        _log.warning("no step.html in the report: %s", done.stderr.strip())
