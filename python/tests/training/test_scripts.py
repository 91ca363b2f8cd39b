"""Whole scripts, run as they are by `python -m smartswap`, beside plain Python."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "script_calls.py"


def launch(*lines):
    """Runs Python once with each line's words behind it, all at once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = [
        subprocess.Popen([sys.executable, *map(str, words)], text=True, env=environment, **pipes)
        for words in lines
    ]
    done = []
    for process in running:
        stdout, stderr = process.communicate(timeout=240)
        done.append(subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr))
    return done


def test_a_script_prints_what_it_prints_without(tmp_path):
    report = tmp_path / "report"
    flags = ["--memory", "14MiB", "--host-memory", "1GiB", "--report", report]
    script = [SCRIPT, "--steps", 12]
    plain, capped = launch(script, ["-m", "smartswap", *flags, *script])
    assert plain.returncode == 0, plain.stderr
    assert capped.returncode == 0, capped.stderr
    assert capped.stdout == plain.stdout
    explained = json.loads((report / "explain.json").read_text())
    assert explained["limit_bytes"] == 14 << 20
    assert explained["steps"] == 12
    trace = json.loads((report / "trace.json").read_text())
    assert trace, "nothing was recorded, so the script was not capped"


def test_a_script_that_fails_fails_as_it_does_without():
    script = [SCRIPT, "--steps", 13]
    plain, capped = launch(script, ["-m", "smartswap", "--memory", "14MiB", *script])
    assert plain.returncode == capped.returncode == 1
    assert capped.stdout == plain.stdout
    assert capped.stderr == plain.stderr
