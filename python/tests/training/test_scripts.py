"""Whole scripts, run as they are by `python -m smartswap`, beside plain Python."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "script_calls.py"


def launch(*words):
    """Runs Python with these words behind it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=240)


def test_a_script_prints_what_it_prints_without(tmp_path):
    report = tmp_path / "report"
    plain = launch(SCRIPT, "--steps", 12)
    flags = ["--memory", "14MiB", "--host-memory", "1GiB", "--report", report]
    capped = launch("-m", "smartswap", *flags, SCRIPT, "--steps", 12)
    assert plain.returncode == 0, plain.stderr
    assert capped.returncode == 0, capped.stderr
    assert capped.stdout == plain.stdout
    explained = json.loads((report / "explain.json").read_text())
    assert explained["limit_bytes"] == 14 << 20
    assert explained["steps"] == 12
    trace = json.loads((report / "trace.json").read_text())
    assert trace, "nothing was recorded, so the script was not capped"


def test_a_script_that_fails_fails_as_it_does_without():
    plain = launch(SCRIPT, "--steps", 13)
    capped = launch("-m", "smartswap", "--memory", "14MiB", SCRIPT, "--steps", 13)
    assert plain.returncode == capped.returncode == 1
    assert capped.stdout == plain.stdout
    assert capped.stderr == plain.stderr
