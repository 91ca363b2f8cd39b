"""Public scripts at a small size on the CPU, where their sources are: see public/run.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "public"
sys.path.insert(0, str(FOLDER))

from scripts import SCRIPTS  # noqa: E402

SOURCES = os.environ.get("SMARTSWAP_PUBLIC_SCRIPTS", "")


@pytest.mark.skipif(not SOURCES, reason="SMARTSWAP_PUBLIC_SCRIPTS names no folder of sources")
@pytest.mark.parametrize("name", [script.name for script in SCRIPTS])
def test_a_public_script_trains_the_same_weights(name, tmp_path_factory):
    data = tmp_path_factory.getbasetemp() / "public-inputs"
    words = [SOURCES, "--only", name, "--caps", "60", "--data", str(data)]
    done = subprocess.run(
        [sys.executable, FOLDER / "run.py", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "same weights" in done.stdout or "skipped" in done.stdout
