"""The pictures of a report: time and memory over the step, by the engine's command line."""

from __future__ import annotations

import json
import logging
import subprocess
from pathlib import Path
from typing import Any

from . import program

__all__ = ["draw"]

_log = logging.getLogger("smartswap")

# A step of a million operators takes a minute.
_TIMEOUT_S = 300


def draw(folder: Path) -> None:
    """Draws `step.html` and `timeline.json` (Perfetto) from a folder's `trace.json`.

    Under its `plan.json`, if there is one, on the machine that its `explain.json` tells of, beside
    what was measured if its `lanes.json` is there, and with the curve of other caps if its
    `caps.json` is.
    What cannot be drawn is a line in the log: the report is whole without it.
    """
    trace = folder / "trace.json"
    page, timeline = folder / "step.html", folder / "timeline.json"
    for earlier in (page, timeline):
        earlier.unlink(missing_ok=True)
    if not trace.is_file():
        return
    smartswap = program.path()
    if smartswap is None:
        _log.info("no step.html in the report: the package was built without its command line")
        return
    words = [smartswap, "simulate", trace, "--report", page, "--timeline", timeline]
    words += _machine(json.loads((folder / "explain.json").read_text()))
    for name in ("plan", "lanes", "caps"):
        file = folder / f"{name}.json"
        if file.is_file():
            words += [f"--{name}", file]
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


def _machine(explained: dict[str, Any]) -> list[Any]:
    """The flags that say what the step ran on, and what was measured there."""
    words = ["--memory", explained["limit_bytes"], "--host-memory", explained["host_limit_bytes"]]
    for way in ("out", "in", "both"):
        words += [f"--link-{way}", int(explained["link"][f"{way}_bytes_per_s"])]
    measured = explained["measured"]
    if measured is not None:
        words += ["--measured-ms", f"{measured['step_us'] / 1e3:.3f}"]
        words += ["--measured-peak", measured["resident_bytes_peak"]]
    return words
