"""Runs scripts in processes of their own, with the built package."""

import atexit
import functools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from forks import Forks, environment
from smartswap import _native
from smartswap.errors import NotBuiltError

try:
    _native.built_for()
except NotBuiltError:
    if os.environ.get("SMARTSWAP_REQUIRE") == "package":
        raise
    pytest.skip("the compiled part of the package is not built", allow_module_level=True)

# Settings under which how long a step takes does not decide what a test sees.
PATIENT = Path(__file__).parent / "training" / "patient.toml"
# A script that takes longer hangs.
PATIENCE_S = 300

START = """
import copy, ctypes, gc, io, os, pickle, sys, torch, smartswap
MIB = 1 << 20
def values(seed, size=MIB):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))
"""


def python(*words, cwd=None):
    """Runs Python with these words behind it."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return watched_all(done)


def watched_all(done):
    """It, where no operator went unwatched: PyTorch only warns of what a callback throws."""
    assert "Exception in RecordFunction callback" not in done.stderr, done.stderr[-3000:]
    return done


@functools.cache
def forks():
    """The process from which the scripts of all tests are forked."""
    made = Forks()
    atexit.register(made.close)
    return made


def forked(script, *words, cwd, patience_s=PATIENCE_S):
    """Runs a script as `python` does, in a process that has PyTorch loaded before it starts."""
    assert "SMARTSWAP_MEMORY" not in os.environ, "it is heeded when PyTorch is imported"
    files = [Path(f"{script}.{stream}") for stream in ("stdout", "stderr")]
    request = {
        "words": [str(script), *map(str, words)],
        "cwd": str(cwd),
        "environment": environment(),
        "stdout": str(files[0]),
        "stderr": str(files[1]),
    }
    [code] = forks().wait(forks().start([request]), patience_s)
    printed = [file.read_text(errors="replace") for file in files]
    for file in files:
        file.unlink()
    return watched_all(subprocess.CompletedProcess(request["words"], code, *printed))


def run(tmp_path, text, starts=forked):
    """Runs a script that starts with `START`. Returns what it printed.

    `starts` is `python` where what is set before PyTorch is loaded matters.
    """
    script = tmp_path / "script.py"
    script.write_text(START + textwrap.dedent(text))
    done = starts(script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def train(tmp_path, program, *words, patience_s=PATIENCE_S):
    """Runs a program. Returns what it printed, which is JSON, and what came on stderr."""
    script = tmp_path / "program.py"
    script.write_text(program)
    done = forked(script, *words, cwd=tmp_path, patience_s=patience_s)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout), done.stderr
