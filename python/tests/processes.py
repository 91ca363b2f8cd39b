"""Runs scripts in processes of their own, with the built package."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
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

START = """
import copy, ctypes, gc, io, os, pickle, sys, torch, smartswap
MIB = 1 << 20
def values(seed, size=MIB):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))
"""


def python(*words, cwd=None):
    """Runs Python with these words behind it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


def run(tmp_path, text, *words):
    """Runs a script that starts with `START`. Returns what it printed."""
    script = tmp_path / "script.py"
    script.write_text(START + textwrap.dedent(text))
    done = python(*words, script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
