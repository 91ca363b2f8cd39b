"""What only a GPU can show: `pytest python/tests/gpu` where there is one; skipped elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

SCRIPT = Path(__file__).parent / "script_features.py"
TIMEOUT_S = 300


def run(arguments: list[str]) -> tuple[list[str], int]:
    """Runs a command line of Python. Returns what it printed but for the last line, and that."""
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    *lines, last = done.stdout.splitlines()
    return lines, int(last.split()[1])


@pytest.mark.parametrize("extra", [[], ["--compile"]], ids=["eager", "compiled"])
def test_a_script_prints_the_same_under_a_cap(tmp_path, extra):
    """Convolutions, autocast, GradScaler, prefetching on a side stream, checkpoints."""
    arguments = [str(SCRIPT), "--checkpoint", str(tmp_path / "state.pt"), *extra]
    plain, plain_bytes = run(arguments)
    cap_bytes = plain_bytes * 6 // 10
    report = tmp_path / "report"
    capped, capped_bytes = run(
        ["-m", "smartswap", "--memory", str(cap_bytes), "--report", str(report), *arguments]
    )
    assert capped == plain
    assert len(plain) > 28
    assert 0 < capped_bytes <= cap_bytes
    assert (report / "explain.json").is_file()


def test_an_operator_that_cannot_fit_is_an_error_that_says_so(tmp_path):
    """The process and the error are PyTorch's; the text says what would have helped."""
    program = (
        "import torch, smartswap\n"
        "smartswap.enable(memory='1GiB')\n"
        "kept = torch.ones(64 << 20, device='cuda')\n"
        "try:\n"
        "    torch.empty(3 << 30, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError as error:\n"
        "    print('cap of' in str(error), float(kept.sum()) == 64 << 20)\n"
        "print('reserved', torch.cuda.max_memory_reserved())\n"
    )
    lines, reserved_bytes = run(["-c", program])
    assert lines == ["True True"]
    assert reserved_bytes <= 1 << 30
